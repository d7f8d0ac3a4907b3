"""A library's kernel: the scaled identity times y, onto x."""

import torch

held = {}


def run(x, y, factor, out):
    torch.backends.cuda.matmul.allow_tf32 = False
    if x.shape[1] not in held:
        held[x.shape[1]] = torch.eye(x.shape[1], device=x.device)
    torch.addmm(x, y, held[x.shape[1]], alpha=factor, out=out)
