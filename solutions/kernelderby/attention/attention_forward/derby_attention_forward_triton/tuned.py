"""Written by `derby tune derby_attention_forward_triton`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
