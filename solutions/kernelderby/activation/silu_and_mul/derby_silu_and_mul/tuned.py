"""Written by `derby tune derby_silu_and_mul`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
