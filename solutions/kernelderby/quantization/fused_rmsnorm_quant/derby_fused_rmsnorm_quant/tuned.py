"""Written by `derby tune derby_fused_rmsnorm_quant`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
