"""Chooses a call's configuration from measurements on this GPU and, where these say little, from a model of the time.

tuned.py's FOUND holds for each GPU a table, the best configuration of some keys, and the losses of configurations at
measured shapes: how much longer each took than the best one there. A key of the table gets its configuration. Any other
key gets the candidate with the least expected loss: a weighted mean of its losses at the measured keys, where nearer
keys count more, and of the loss that the model (`cost`) expects. Only the shape decides, never an earlier call.
"""

import functools
import re
from math import log2

import torch

# A key an octave further counts half as much. The model counts as a key at MODEL octaves.
MODEL = 4
UNKNOWN = 0.25  # the expected loss of a candidate that the model does not know, in log2 of a time
BEHIND = 0.05  # the loss of a configuration at a key of the table, which names the best one alone
RANK = 0.05  # without a model: how much larger the expected loss of each candidate is than that of the one before it


@functools.cache
def _gpu_name(index):
    return "CPU" if index is None else torch.cuda.get_device_name(index)


def gpu_name(tensor):
    """"NVIDIA H200" and the like; "CPU" where Triton interprets."""
    return _gpu_name(tensor.device.index if tensor.is_cuda else None)


@functools.cache
def _parts(key):
    """"h4096 t<=64" -> its words, "h# t<=#", and its numbers."""
    return re.sub(r"\d+", "#", key), [int(number) for number in re.findall(r"\d+", key)]


def distance(key, other):
    """Octaves between two keys, all sizes together; infinite where their words differ."""
    (words, sizes), (other_words, other_sizes) = _parts(key), _parts(other)
    if words != other_words:
        return float("inf")
    return sum(abs(log2(max(size, 1) / max(there, 1))) for size, there in zip(sizes, other_sizes, strict=True))


def _frozen(config):
    return tuple(sorted(config.items()))


def measured(entry):
    """[(key, {configuration: its loss in log2}, any other's loss or None for unknown)] of a GPU's entry in FOUND."""
    configs = [_frozen(config) for config in entry.get("configs", [])]
    points = [(key, {config: log2(1 + loss / 1000)
                     for config, loss in zip(configs, losses, strict=True) if loss is not None}, None)
              for key, losses in entry.get("losses", [])]
    return points + [(key, {_frozen(config): 0.0}, BEHIND) for key, config in entry.get("table", {}).items()]


def least_loss(key, points, options, costs):
    """The option with the least expected loss; of equal ones the first. points: from measured(). costs: log2 of each
    option's time by the model, None if it does not know the option."""
    least = min((cost for cost in costs if cost is not None), default=0.0)
    sums = [[2.0**-MODEL, 2.0**-MODEL * (UNKNOWN if cost is None else cost - least)] for cost in costs]
    names = [_frozen(config) for config in options]
    for other, losses, others in points:
        weight = 2.0 ** -distance(key, other)
        for name, total in zip(names, sums, strict=True):
            loss = losses.get(name, others)
            if loss is not None:
                total[0] += weight
                total[1] += weight * loss
    return options[min(range(len(options)), key=lambda number: sums[number][1] / sums[number][0])]


class Choice:
    """choose(*inputs) -> configuration: a look-up for a shape that was seen before.

    found: FOUND of the solution's tuned.py. tuning_key(*inputs), candidates(*inputs), cost(config, *inputs): the
    solution's functions; without a cost the order of the candidates is the model. What decides is the shape of the
    first input, a tensor, and of each input at the places `also` the number or the tensor's shape.
    """

    def __init__(self, found, tuning_key, candidates, cost=None, also=()):
        self.found, self.tuning_key, self.candidates, self.cost = found, tuning_key, candidates, cost
        self.also, self.known, self.points = also, {}, {}

    def __call__(self, *inputs):
        first = inputs[0]
        place = first.shape, first.get_device()
        if self.also:
            place += tuple(getattr(inputs[number], "shape", inputs[number]) for number in self.also)
        config = self.known.get(place)
        if config is None:
            name = gpu_name(first)
            if name not in self.points:
                self.points[name] = measured(self.found.get(name, {}))
            table = self.found.get(name, {}).get("table", {})
            config = self.known[place] = self.decide(table, self.points[name], *inputs)
        return config

    def decide(self, table, points, *inputs):
        """The configuration for a GPU with this table and these points."""
        key = self.tuning_key(*inputs)
        if key in table:
            return table[key]
        options = self.candidates(*inputs)
        if self.cost is None:
            costs = [RANK * place for place in range(len(options))]
        else:
            costs = [self.cost(config, *inputs) for config in options]
        return least_loss(key, points, options, costs)
