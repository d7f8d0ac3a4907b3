"""How a file is written and read: whole, bounded, typed, with one-line errors."""
