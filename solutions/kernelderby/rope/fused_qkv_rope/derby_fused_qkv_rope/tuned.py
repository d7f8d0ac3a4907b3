"""Found by `derby tune derby_fused_qkv_rope`. GPU name -> table."""

FOUND = {}
