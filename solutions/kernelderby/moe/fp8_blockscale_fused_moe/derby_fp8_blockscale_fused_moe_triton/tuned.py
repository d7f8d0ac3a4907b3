"""Found by `derby tune derby_fp8_blockscale_fused_moe_triton`. GPU name -> table."""

FOUND = {}
