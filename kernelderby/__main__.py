"""python -m kernelderby, for where the command is not on PATH."""

from kernelderby.cli import main

main()
