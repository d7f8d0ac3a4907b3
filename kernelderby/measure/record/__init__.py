"""Profiles recorded here: CUPTI records or nsys to SQLite."""
