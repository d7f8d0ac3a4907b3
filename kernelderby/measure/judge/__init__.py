"""What a solution must not know: cases, inputs, references, comparison."""
