"""Found by `derby tune derby_block_scaled_mm_sm90`. GPU name -> table."""
FOUND = {}
