"""Written by `derby tune derby_l2_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
