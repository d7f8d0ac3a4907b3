"""Profiles on the page: operators with their gain, the critical path and memory, before and after."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from kernelderby import catalog
from kernelderby.page.build import build_page
from kernelderby.page.studies import ACTIVITY, COMPARISON, GAIN
from tests.capture.kineto import Trace
from tests.conftest import CHECKOUT

GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"
STEPS = 12


def server(path: Path, microseconds: int) -> None:
    """STEPS steps of one linear layer each, beside a copy on another stream; the allocator reports its memory."""
    trace = Trace()
    for number in range(STEPS):
        start = trace.now
        trace.operator("aten::linear", ["bf16 64x128", "bf16 256x128"], trace.kernel(GEMM, microseconds + number % 3))
        trace.event("user_annotation", f"step[DECODE bs=64] {number}", start - 0.5, trace.now - start + 0.2, {})
        where = {"device": 0, "stream": 9, "correlation": trace.identity(), "bytes": 64}
        trace.event("gpu_memcpy", "Memcpy DtoD", trace.now + 1002, 3, where, thread=99)
        trace.now += 60
    memory = {"Total Allocated": 5 << 20, "Total Reserved": 9 << 20, "Device Type": 1, "Device Id": 0, "Bytes": 1}
    trace.event("cpu_instant_event", "[memory]", 150, 0, memory)
    trace.events[-1] |= {"ph": "i", "s": "t"}
    trace.write(path)


@pytest.fixture
def model(small_set):
    folder = small_set / "profiles"
    folder.mkdir(exist_ok=True)
    server(folder / "server_before.json", 10)
    server(folder / "server_after.json", 40)
    return build_page(small_set).model


def test_the_page_reads_the_rows_and_the_solutions_once(small_set, monkeypatch):
    folder = small_set / "profiles"
    folder.mkdir(exist_ok=True)
    for name in ("server_before", "server_after", "toy_fast_before", "toy_fast_after"):
        server(folder / f"{name}.json", 10)
    read = Counter()

    def counting(function):
        def counted(path, *given, **named):
            read[function.__name__, path] += 1
            return function(path, *given, **named)

        return counted

    for function in (catalog.load_rows, catalog.load_solutions):
        monkeypatch.setattr(catalog, function.__name__, counting(function))
    build_page(small_set)
    assert {name for name, _ in read} == {"load_rows", "load_solutions"} and set(read.values()) == {1}, read


def texts(study, title):
    table = next(each for each in study.tables if each.title.startswith(title))
    return [[cell[0] for cell in row] for row in table.rows]


def test_the_page_has_each_profiles_operators_activity_and_what_changed(model):
    found = {(each.kind, each.title): each for each in model.studies}
    assert set(found) == {
        (GAIN, "profiles/server_before.json"),
        (GAIN, "profiles/server_after.json"),
        (ACTIVITY, "profiles/server_before.json"),
        (ACTIVITY, "profiles/server_after.json"),
        (COMPARISON, "profiles/server_before.json -> server_after.json"),
    }
    gain = found[GAIN, "profiles/server_before.json"]
    assert "with shapes" in gain.facts[0]
    activity = found[ACTIVITY, "profiles/server_before.json"]
    titles = [table.title for table in activity.tables]
    assert any(title.startswith("Critical path") for title in titles), titles
    assert any(title.startswith("Memory") for title in titles), titles


def test_before_and_after_are_compared_by_step(model):
    [study] = [each for each in model.studies if each.kind == COMPARISON]
    rows = [row for table in study.tables for row in table.rows]
    assert any(GEMM[:8] in row[0][0] for row in rows)
    assert any("step" in table.title.lower() for table in study.tables), [table.title for table in study.tables]


def test_a_broken_pair_is_named_and_the_rest_stands(small_set):
    folder = small_set / "profiles"
    folder.mkdir(exist_ok=True)
    server(folder / "server_before.json", 10)
    (folder / "server_after.json").write_text(json.dumps({"traceEvents": []}))
    built = build_page(small_set)
    assert any("server_after.json" in each for each in built.left_out)
    assert {each.kind for each in built.model.studies} == {GAIN, ACTIVITY}


def test_a_capture_beside_a_trace_explains_it_and_is_none_of_its_own(small_set):
    folder = small_set / "profiles"
    folder.mkdir(exist_ok=True)
    server(folder / "serving.json", 10)
    shutil.copy(folder / "serving.json", folder / "serving_capture.json")
    shown = {(each.kind, each.title) for each in build_page(small_set).model.studies}
    assert (GAIN, "profiles/serving.json") in shown and (GAIN, "profiles/serving_capture.json") not in shown


def test_the_checkouts_example_is_shown_with_its_gain():
    """Built once for all tests of the page; this one reads the small example alone."""
    from kernelderby.catalog import Catalog
    from kernelderby.page.studies import capture_study

    catalog = Catalog.open(CHECKOUT)
    study = capture_study(catalog, CHECKOUT / "profiles" / "example_server.json", catalog.traces())
    assert study is not None and any("would save" in fact for fact in study.facts)
