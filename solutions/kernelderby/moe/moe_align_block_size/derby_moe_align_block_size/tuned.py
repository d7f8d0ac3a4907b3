"""Found by `derby tune derby_moe_align_block_size`. GPU name -> table."""

FOUND = {}
