"""Written by `derby tune derby_causal_conv1d`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
