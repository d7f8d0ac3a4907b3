"""Written by `derby tune derby_moe_sum_reduce`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
