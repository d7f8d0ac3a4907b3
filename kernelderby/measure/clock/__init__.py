"""How long a call takes: the spans of its kernels, launched by the host or replayed as a CUDA graph."""
