"""Whether two versions of a CUDA solution give the same machine code, on the GPU and on the CPU that launches it."""
