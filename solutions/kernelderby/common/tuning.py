"""Chooses a call's configuration: the one that `derby tune` found on this GPU, else the heuristic's first choice."""

import functools

import torch


@functools.cache
def gpu_name(device):
    """"NVIDIA H200" and the like; "CPU" in Triton's interpreter."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


class Chooser:
    """choose(*inputs) -> configuration. Remembered by GPU and tuning key, so a call costs two look-ups.

    found: FOUND of the solution's tuned.py. tuning_key, candidates: the solution's functions of the same inputs;
    whatever candidates() depends on must be part of the key. The first input is a tensor.
    """

    def __init__(self, found, tuning_key, candidates):
        self.found, self.tuning_key, self.candidates, self.known = found, tuning_key, candidates, {}

    def __call__(self, *inputs):
        place = inputs[0].device, self.tuning_key(*inputs)
        config = self.known.get(place)
        if config is None:
            table = self.found.get(gpu_name(place[0]), {}).get("table", {})
            config = self.known[place] = table.get(place[1]) or self.candidates(*inputs)[0]
        return config
