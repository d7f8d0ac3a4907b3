"""What runs in the process of one solution."""
