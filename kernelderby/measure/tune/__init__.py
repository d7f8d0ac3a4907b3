"""derby tune: which configuration of a solution is the fastest, written into the tuned.py beside it."""
