"""The rights, resources and lifetime of a worker's process."""
