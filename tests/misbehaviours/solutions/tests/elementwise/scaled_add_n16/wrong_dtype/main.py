"""Returns float64."""


def run(x, y, factor):
    return (x + factor * y).double()
