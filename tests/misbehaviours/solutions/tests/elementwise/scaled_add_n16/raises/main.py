"""Raises an exception."""


def run(x, y, factor, out):
    raise ValueError("no such luck")
