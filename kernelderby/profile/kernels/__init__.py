"""Kernel by kernel: whose it is, what it does, what the summary says that somebody should act on."""
