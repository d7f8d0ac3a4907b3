"""The steps of a run (a forward pass, a training iteration): where each begins, what kind it is, what its GPU did."""
