"""Written by `derby tune derby_mrope`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
