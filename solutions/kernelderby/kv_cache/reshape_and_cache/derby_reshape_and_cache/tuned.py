"""Found by `derby tune derby_reshape_and_cache`. GPU name -> table."""

FOUND = {}
