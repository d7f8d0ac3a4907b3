"""Leaves the output as it was."""


def run(x, y, factor, out):
    pass
