import torch

kept = []


def run(x, y, factor, out):
    if not kept or kept[0].numel() < x.numel():
        kept[:] = [torch.empty(x.numel(), device=x.device)]
    product = kept[0][: x.numel()].view(x.shape)
    torch.mul(y, factor, out=product)
    torch.add(x, product, out=out)
