"""Found by `derby tune derby_paged_attention_decode_triton`. GPU name -> table."""

FOUND = {}
