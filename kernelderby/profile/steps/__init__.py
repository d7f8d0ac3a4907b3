"""The steps of a run (forward passes, training iterations): start, kind and GPU time of each."""
