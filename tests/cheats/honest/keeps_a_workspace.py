"""Keeps memory from call to call, by shape."""

import torch

workspaces = {}


def run(x, y, factor, out):
    if x.shape not in workspaces:
        workspaces[x.shape] = torch.empty_like(x)
    torch.mul(y, factor, out=workspaces[x.shape])
    torch.add(x, workspaces[x.shape], out=out)
