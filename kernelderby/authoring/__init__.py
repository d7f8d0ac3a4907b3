"""The files of `derby new`: an operator from its inputs and a reference, a solution that starts right. No torch."""
