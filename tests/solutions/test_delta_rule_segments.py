"""Where the gated delta rule's kernels cut a sequence, against what an H200 took (23 November 2026)."""

import importlib.util

import pytest
from moe_cases import ROOT

SPEC = importlib.util.spec_from_file_location(
    "delta_rule_segments", ROOT / "solutions/kernelderby/common/delta_rule_segments.py"
)
segments = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(segments)

UNCUT = segments.UNCUT
# (chunks, sequences, heads, changes): {chunks of a segment: us}. changes: 4 of the state stage, 2 of the whole update.
MEASURED = {
    (32, 1, 4, 4): {UNCUT: 28.8, 11: 23.3, 8: 20.4, 7: 18.5, 6: 18.2, 4: 18.7, 3: 22.5, 2: 26.2, 1: 45.3},
    (384, 1, 4, 4): {UNCUT: 300.2, 128: 202.9, 64: 110.4, 48: 91.3, 39: 101.6, 32: 93.1, 24: 90.8, 12: 119.8},
    (16, 1, 8, 4): {UNCUT: 16.4, 6: 15.5, 4: 15.3, 3: 17.5, 2: 19.6, 1: 33.4},
    (8, 1, 8, 4): {UNCUT: 10.3, 3: 11.6, 2: 12.2, 1: 16.8},
    (128, 1, 8, 4): {UNCUT: 103.3, 43: 73.6, 32: 60.1, 26: 52.7, 22: 61.2, 15: 56.3, 11: 65.1, 4: 141.7},
    (256, 1, 16, 4): {UNCUT: 206.3, 86: 156.6, 64: 175.3, 52: 163.8, 43: 202.4, 32: 195.7, 8: 384.9},
    (32, 1, 24, 4): {UNCUT: 31.3, 11: 36.7, 8: 41.7, 6: 50.5, 4: 58.2, 1: 347.8},
    (173, 1, 32, 4): {UNCUT: 162.0, 58: 190.5, 44: 224.0, 29: 248.8, 6: 620.6},
    (9, 1, 32, 2): {UNCUT: 26.2, 3: 29.3, 2: 38.1, 1: 64.0},
    (33, 1, 32, 2): {UNCUT: 67.8, 11: 63.1, 9: 81.2, 7: 79.3, 5: 94.4, 3: 127.7},
    (128, 1, 32, 2): {UNCUT: 228.3, 43: 193.3, 32: 245.6, 26: 223.7, 16: 274.8, 4: 718.2},
    (256, 2, 8, 2): {UNCUT: 207.5, 43: 145.7, 32: 124.5, 26: 147.9, 16: 141.5, 4: 308.8},
    (128, 8, 32, 2): {UNCUT: 200.5, 6: 308.3, 4: 379.0, 2: 645.5, 1: 1713.1},
}


@pytest.mark.parametrize("case", MEASURED)
def test_the_cut_is_within_six_percent_of_the_best(case):
    times = MEASURED[case]
    chosen = segments.chunks_of_segment(*case, 132)
    nearest = min(times, key=lambda length: abs(length - chosen))
    assert abs(nearest - chosen) <= 0.13 * nearest, f"{chosen} was not measured"
    assert times[nearest] <= 1.06 * min(times.values())


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("sequences", [1, 7])
def test_short_sequences_are_not_cut(chunks, sequences):
    assert segments.chunks_of_segment(chunks, sequences, 4, 4, 132) == UNCUT
