"""Found by `derby tune derby_mla_paged_decode_attention_sm90`. GPU name -> table."""

FOUND = {}
