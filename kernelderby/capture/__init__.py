"""From a profile to workloads: operators by shape, their time, and the time that a faster kernel would save."""
