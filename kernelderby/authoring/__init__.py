"""The files of `derby new`: an operator from its inputs and a reference, and a solution that is correct from the start.
No torch."""
