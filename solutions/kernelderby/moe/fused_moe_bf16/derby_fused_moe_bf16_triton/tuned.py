"""Found by `derby tune derby_fused_moe_bf16_triton`. GPU name -> table."""

FOUND = {}
