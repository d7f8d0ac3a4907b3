"""Found by `derby tune derby_topk_filter`. GPU name -> table."""

FOUND = {}
