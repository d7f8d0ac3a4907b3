"""Written by `derby tune derby_fused_qk_rmsnorm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
