"""Found by `derby tune derby_fused_moe_sm90`. GPU name -> table."""

FOUND = {}
