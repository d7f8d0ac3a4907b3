"""Written by `derby tune derby_per_token_group_quant_fp8`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
