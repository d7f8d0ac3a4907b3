"""Written by `derby tune derby_layer_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
