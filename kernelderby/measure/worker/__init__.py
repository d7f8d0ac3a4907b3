"""The process of one solution."""
