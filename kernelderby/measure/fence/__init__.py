"""What a worker's process gets, may do, and may not outlive."""
