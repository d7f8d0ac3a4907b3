"""A run: what is measured, in which order, and the rows that it writes."""
