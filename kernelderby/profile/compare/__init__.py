"""Two profiles side by side: step by step, and by stage or kernel; which kernel is which under a new name."""
