"""Found by `derby tune derby_mrope`. GPU name -> table."""

FOUND = {}
