"""Written by `derby tune derby_fused_add_rms_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
