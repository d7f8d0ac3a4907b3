"""This machine, and the solutions that it can run."""
