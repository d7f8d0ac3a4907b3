"""Written by `derby tune vllm_triton_fused_moe_tuned`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {}
