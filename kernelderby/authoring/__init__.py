"""What `derby new` writes: an operator from its inputs and a reference, a solution that starts right. No torch."""
