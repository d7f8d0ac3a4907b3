"""Found by `derby tune derby_paged_attention_decode_sm90`. GPU name -> table."""

FOUND = {}
