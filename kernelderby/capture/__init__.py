"""From a profile to workloads: which operators ran at which shapes, how long, and what a faster kernel would save."""
