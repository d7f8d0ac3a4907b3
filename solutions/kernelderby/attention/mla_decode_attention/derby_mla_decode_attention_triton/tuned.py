"""Found by `derby tune derby_mla_decode_attention_triton`. GPU name -> table."""

FOUND = {}
