"""Kernel by kernel: its library, its role, and findings that somebody should act on."""
