"""Found by `derby tune derby_fused_moe_triton`. GPU name -> table."""

FOUND = {}
