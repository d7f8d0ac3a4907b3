"""Right, but works in its input."""


def run(x, y, factor, out):
    x.add_(y, alpha=factor)
    out.copy_(x)
