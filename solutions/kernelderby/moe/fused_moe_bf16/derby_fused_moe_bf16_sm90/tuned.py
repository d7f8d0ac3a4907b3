"""Found by `derby tune derby_fused_moe_bf16_sm90`. GPU name -> table."""

FOUND = {}
