"""Which NVTX ranges are open at a time: all at once, and one by one."""

import random

import numpy as np
import pytest

from kernelderby.profile.sources.ranges import NEVER, Paths, nested_timeline, swept_timeline


def _drawn(generator, count):
    """Ranges of one thread that nest, several ending or starting at one moment, some open."""
    found = []

    def inside(start, end, depth):
        at = start
        while depth and at < end and len(found) < count:
            begin = generator.choice((at, generator.randrange(at, end)))
            stop = generator.choice((end, generator.randrange(begin + 1, end + 1)))
            is_open = stop == end == 1000 and generator.random() < 0.1
            found.append((begin, NEVER if is_open else stop, generator.choice("abc")))
            if found[-1][1] != NEVER or depth > 1:
                inside(begin, stop, depth - 1)
            at = stop

    inside(0, 1000, 5)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_ranges_at_once_are_ranges_swept(seed):
    """nested_timeline against the sweep that takes ranges one by one; what does not nest goes to the sweep."""
    generator = random.Random(seed)
    ranges = _drawn(generator, 40)
    if seed % 3 == 0:  # some that overlap in any way
        ranges += [(start, start + generator.randrange(1, 90), "x") for start in generator.choices(range(900), k=3)]
    ranges.sort(key=lambda each: (each[0], -each[1]))
    texts = sorted({name for *_, name in ranges})
    swept, at_once = Paths(), Paths()
    expected = swept_timeline(ranges, swept)
    arrays = [np.array([each[column] for each in ranges], dtype=np.int64) for column in (0, 1)]
    found = nested_timeline(*arrays, np.array([texts.index(name) for *_, name in ranges]), texts, at_once)
    is_nested = all(
        other[0] >= one[1] or other[1] <= one[1] for place, one in enumerate(ranges) for other in ranges[place + 1 :]
    )
    assert (found is not None) == is_nested
    if found is not None:
        assert [found.times.tolist(), [at_once.names[each] for each in found.nesting]] == [
            expected.times.tolist(),
            [swept.names[each] for each in expected.nesting],
        ]
