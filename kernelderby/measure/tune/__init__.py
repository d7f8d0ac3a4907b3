"""derby tune: finds the fastest configurations of a solution and writes them into the tuned.py beside it."""
