"""Work of one set over the GPUs of a Ray cluster."""
