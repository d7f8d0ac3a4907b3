"""A run: its jobs, their order, and its rows."""
