"""Found by `derby tune derby_linear_sigmoid_mul_triton`. GPU name -> table."""
FOUND = {}
