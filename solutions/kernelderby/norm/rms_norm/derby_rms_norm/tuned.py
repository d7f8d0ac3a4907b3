"""Written by `derby tune derby_rms_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
