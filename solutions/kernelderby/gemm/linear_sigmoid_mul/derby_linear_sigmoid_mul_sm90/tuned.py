"""Found by `derby tune derby_linear_sigmoid_mul_sm90`. GPU name -> table."""
FOUND = {}
