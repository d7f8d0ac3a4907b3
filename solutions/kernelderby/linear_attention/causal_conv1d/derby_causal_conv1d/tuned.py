"""Found by `derby tune derby_causal_conv1d`. GPU name -> table."""

FOUND = {}
