"""A decoder of true layer sizes around the operators, for tokens per second with and without the winners."""
