"""Returns a row less."""


def run(x, y, factor):
    return (x + factor * y)[:-1]
