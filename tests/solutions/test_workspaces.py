"""common/workspaces.py: what eager calls and captures get. No GPU: the state of a capture is made up; on one, see
test_graphs_gpu.py."""

import itertools
import sys
import weakref

import pytest
import torch
from rowwise_cases import CATALOG

from kernelderby.measure.worker.build import load_solution

CPU = torch.device("cpu")


@pytest.fixture
def workspaces():
    solution = CATALOG.solution("triton_compact")
    return sys.modules[load_solution(CATALOG.definition(solution.definition), solution).__module__].workspaces


@pytest.fixture
def on(workspaces, monkeypatch):
    """on(stream, capture) -> the calls that follow come on that stream, in that capture (None: eager)."""

    def go(stream, capture=None):
        monkeypatch.setattr(workspaces, "place", lambda device: (stream, capture is not None))
        monkeypatch.setattr(workspaces, "capture_of", lambda asked: capture)

    go(1)
    return go


@pytest.fixture
def made(workspaces):
    return workspaces.Workspace(torch.float32, torch.uint8)


def storages(space):
    return {tensor.untyped_storage().data_ptr() for tensor in space.tensors[1:]}


def overlap(one, other):
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def test_a_stream_keeps_one_and_grows_it(on, made):
    small = made(CPU, 3, 10, 5)
    assert [tensor.numel() for tensor in small.tensors] == [3, 10, 5]
    assert [tensor.dtype for tensor in small.tensors] == [torch.int32, torch.float32, torch.uint8]
    assert small.addresses == [tensor.data_ptr() for tensor in small.tensors]
    assert made(CPU, 2, 10, 4) is small
    large = made(CPU, 3, 4, 9)
    assert [tensor.numel() for tensor in large.tensors] == [3, 10, 9] and large.tensors[0] is small.tensors[0]
    assert made(CPU, 3, 10, 9) is large
    on(2)
    assert made(CPU, 3, 10, 9) is not large
    assert len(made.kept) == 2


def test_counters_are_zero_and_nobody_elses(on, made, workspaces):
    held = []
    for stream, capture in itertools.product(range(3), (None, 7, 8)):
        on(stream, capture)
        held += [made(CPU, count, 1, 1).tensors[0] for count in (5, 40)]
    different = {tensor.data_ptr(): tensor for tensor in held}
    assert len(different) == 2 * 9, "a larger count is another piece"
    for one, other in itertools.combinations(different.values(), 2):
        assert not overlap(one, other)
    assert not any(tensor.any() for tensor in held)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in held)
    assert len({tensor.untyped_storage().data_ptr() for tensor in held}) == 1, "no fill in a graph"


def test_captures_and_eager_calls_never_share_memory(on, made):
    """Also not the capture's counters with another capture on the same stream, while one capture's calls share them."""
    eager = made(CPU, 3, 10, 5)
    on(1, capture=7)
    first, second = made(CPU, 3, 10, 5), made(CPU, 2, 20, 5)
    assert first.tensors[0] is second.tensors[0] and not storages(first) & storages(second)
    on(1, capture=8)
    third = made(CPU, 3, 10, 5)
    assert third.tensors[0] is not first.tensors[0]
    on(1)
    later = made(CPU, 3, 1000, 500)
    assert later.tensors[0] is eager.tensors[0]
    assert not (storages(first) | storages(second) | storages(third)) & (storages(eager) | storages(later))
    assert list(made.kept.values()) == [later]


def test_a_captured_calls_buffers_go_back_to_its_graphs_pool(on, made):
    """Nothing keeps them: the graph's pool does, as for every operator of torch."""
    on(1, capture=7)
    space = made(CPU, 3, 10, 5)
    held = [weakref.ref(tensor) for tensor in space.tensors[1:]]
    del space
    assert [tensor() for tensor in held] == [None, None]


def test_zeros_that_run_out_in_a_capture_come_from_the_graph_and_are_not_kept(on, made, workspaces):
    made(CPU, 3, 10, 5)
    on(1, capture=7)
    many = workspaces.ZEROS
    one, two = made(CPU, many, 1, 1).tensors[0], made(CPU, many, 1, 1).tensors[0]
    assert not one.any() and not overlap(one, two)
    assert made.kept, "enough is left"
    half = made(CPU, workspaces.ZEROS // 2, 1, 1).tensors[0]
    assert not made.kept, "an eager call fills more"
    on(1)
    made(CPU, 3, 1, 1)
    on(1, capture=9)
    assert made(CPU, many // 4, 1, 1).tensors[0].untyped_storage().data_ptr() == (
        made.zeros[CPU].filled[-1].untyped_storage().data_ptr()
    )
    assert any(
        half.untyped_storage().data_ptr() == filled.untyped_storage().data_ptr() for filled in made.zeros[CPU].filled
    ), "never freed"


def test_a_driver_that_tells_no_capture_costs_a_fill_in_the_graph(on, made, workspaces, monkeypatch):
    made(CPU, 3, 10, 5)
    on(1, capture=7)
    monkeypatch.setattr(workspaces, "capture_of", lambda stream: None)
    one, two = made(CPU, 3, 10, 5).tensors[0], made(CPU, 3, 10, 5).tensors[0]
    assert not one.any() and not overlap(one, two)
    assert one.untyped_storage().data_ptr() != made.zeros[CPU].filled[-1].untyped_storage().data_ptr()


def test_a_cpu_captures_nothing(workspaces):
    assert workspaces.place(CPU) == (0, False)
    assert workspaces.capture_of(0) is None or torch.cuda.is_available()
