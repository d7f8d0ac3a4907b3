"""python -m kernelderby.cli, for where the command is not on PATH."""

from kernelderby.cli import main

main()
