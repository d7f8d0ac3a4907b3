"""Found by `derby tune derby_block_scaled_mm_triton`. GPU name -> table."""
FOUND = {}
