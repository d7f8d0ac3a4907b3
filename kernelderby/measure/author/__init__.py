"""Trials of `derby new operator` with torch: a function's axes, and its outputs at some sizes."""
