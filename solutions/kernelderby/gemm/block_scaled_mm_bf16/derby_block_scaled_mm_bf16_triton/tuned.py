"""Found by `derby tune derby_block_scaled_mm_bf16_triton`. GPU name -> table."""
FOUND = {}
