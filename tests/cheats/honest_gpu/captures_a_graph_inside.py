"""Captures its kernel into a CUDA graph of its own, one for each place that it is called with, and replays that."""

import torch

graphs = {}


def run(x, y, factor, out):
    if torch.cuda.is_current_stream_capturing():
        torch.add(x, y, alpha=factor, out=out)
        return
    place = x.data_ptr(), y.data_ptr(), out.data_ptr(), x.shape, factor
    if place not in graphs:
        torch.add(x, y, alpha=factor, out=out)
        torch.cuda.synchronize()
        graphs[place] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[place]):
            torch.add(x, y, alpha=factor, out=out)
    graphs[place].replay()
