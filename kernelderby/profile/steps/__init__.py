"""The steps of a run (a forward pass, a training iteration): the start, kind and GPU time of each."""
