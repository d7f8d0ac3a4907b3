"""Written by `derby tune derby_unified_attention_triton`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
