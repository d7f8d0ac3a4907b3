"""A decoder with true layer sizes around the operators, which measures tokens per second with and without the
winners."""
