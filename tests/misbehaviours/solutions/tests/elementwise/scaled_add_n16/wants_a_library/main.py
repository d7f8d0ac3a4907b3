"""Needs what nobody has."""

import no_such_library


def run(x, y, factor, out):
    no_such_library.run(x, y, factor, out)
