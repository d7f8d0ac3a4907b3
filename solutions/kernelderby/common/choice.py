"""Which configuration a call uses, from two sources: what `derby tune` found on this GPU, and a model of a time.

A table (FOUND of a tuned.py) holds the best configuration of some keys. A key that it holds gets that one. Any other
key gets the candidate of the least expected time: the model's (`cost`), less a bonus where a key nearby found the same
configuration. The bonus halves with each octave between the keys. The shape alone decides, never an earlier call.
"""

import functools
import re
from math import log2

import torch

# Set by judgement, not fitted: too few recorded shapes hold times of several configurations (docs/lab/memory_bound.md).
# `derby tune --regret` measures what they are worth.
TRUST = 0.16  # the bonus at no distance, in log2 of a time
REACH = 4  # octaves beyond which a find says nothing
EXACT = 2  # an octave of a size that a key names exactly (a width) counts as so many of one that it bounds (rows)
UNKNOWN = 0.02  # a candidate that the model does not know is this much behind the best that it knows


@functools.cache
def _gpu_name(index):
    return "CPU" if index is None else torch.cuda.get_device_name(index)


def gpu_name(tensor):
    """"NVIDIA H200" and the like; "CPU" where Triton interprets."""
    return _gpu_name(tensor.device.index if tensor.is_cuda else None)


@functools.cache
def _parts(key):
    """"h4096 t<=64" -> its words, "h# t<=#", the same with what it names exactly, "h4096 t<=#", and (number, weight) of
    each number."""
    numbers = [(int(number), 1 if bound else EXACT) for bound, number in re.findall(r"(<=)?(\d+)", key)]
    return re.sub(r"\d+", "#", key), re.sub(r"<=\d+", "<=#", key), numbers


def distance(key, other):
    """Octaves between two keys, all sizes together; infinite where their words differ."""
    (words, _, sizes), (other_words, _, other_sizes) = _parts(key), _parts(other)
    if words != other_words:
        return float("inf")
    return sum(weight * abs(log2(max(size, 1) / max(there, 1)))
               for (size, weight), (there, _) in zip(sizes, other_sizes, strict=True))


def expected_best(key, table, options, costs):
    """The option of the least expected time. table: key -> what was found best there. costs: log2 of each option's time
    by the model, None where it does not know; of equals the first."""
    known = [cost for cost in costs if cost is not None]
    unknown = min(known, default=0.0) + UNKNOWN
    found = [(distance(key, other), config) for other, config in table.items()]
    near = [(octaves, config) for octaves, config in found if octaves <= REACH]

    def expected(number):
        gains = [TRUST / 2**octaves for octaves, config in near if config == options[number]]
        return (unknown if costs[number] is None else costs[number]) - max(gains, default=0.0)

    return options[min(range(len(options)), key=expected)]


class Choice:
    """choose(*inputs) -> configuration: a look-up for a shape that was seen before.

    found: FOUND of the solution's tuned.py. tuning_key(*inputs), candidates(*inputs), cost(config, *inputs): the
    solution's. The first input is a tensor whose shape tells the others'.
    """

    def __init__(self, found, tuning_key, candidates, cost):
        self.found, self.tuning_key, self.candidates, self.cost = found, tuning_key, candidates, cost
        self.known = {}

    def __call__(self, *inputs):
        first = inputs[0]
        place = first.shape, first.get_device()
        config = self.known.get(place)
        if config is None:
            config = self.known[place] = self.decide(self.found.get(gpu_name(first), {}).get("table", {}), *inputs)
        return config

    def decide(self, table, *inputs):
        """What a GPU with this table gets."""
        key = self.tuning_key(*inputs)
        if key in table:
            return table[key]
        options = self.candidates(*inputs)
        # Of the same widths and an octave of rows away, also what a wider search than the candidates found.
        for other, config in table.items():
            if _parts(key)[1] == _parts(other)[1] and distance(key, other) <= 1 and config not in options:
                options = [*options, config]
        return expected_best(key, table, options, [self.cost(config, *inputs) for config in options])
