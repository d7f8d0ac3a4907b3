"""The SQLite export of Nsight Systems: its tables, their rows, and the ranges around every launch."""
