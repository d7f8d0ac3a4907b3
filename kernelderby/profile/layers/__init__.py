"""A served model's layers, module by module, from profiles and published tables."""
