"""Found by `derby tune derby_fp8_blockscale_fused_moe_sm90`. GPU name -> table."""

FOUND = {}
