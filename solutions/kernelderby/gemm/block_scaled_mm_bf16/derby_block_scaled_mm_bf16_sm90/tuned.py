"""Found by `derby tune derby_block_scaled_mm_bf16_sm90`. GPU name -> table."""
FOUND = {}
