"""The judge's part, which a solution must not know: cases, inputs, references, comparison."""
