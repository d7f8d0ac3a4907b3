"""Found by `derby tune derby_moe_count_and_sort`. GPU name -> table."""

FOUND = {}
