"""Means, intervals and tests that rankings, races and profiles share. docs/scoring.md has the formulas."""
