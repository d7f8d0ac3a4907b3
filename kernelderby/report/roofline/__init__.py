"""A survey of the distance to the hardware's limit as tables."""
