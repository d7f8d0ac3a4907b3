import torch


def run(x, scale, factor, y):
    torch.mul(x, (scale * factor)[:, None], out=y)
