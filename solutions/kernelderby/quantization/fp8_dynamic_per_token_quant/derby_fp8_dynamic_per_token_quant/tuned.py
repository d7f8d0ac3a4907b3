"""Written by `derby tune derby_fp8_dynamic_per_token_quant`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
