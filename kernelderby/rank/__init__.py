"""Solution against solution on one GPU, from recorded traces. docs/scoring.md says how every number is computed."""
