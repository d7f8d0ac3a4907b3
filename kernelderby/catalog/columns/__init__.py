"""Rows as columns: a Parquet copy of the lines of traces/, made and read a part at a time."""
