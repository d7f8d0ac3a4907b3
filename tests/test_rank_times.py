"""Which of a row's times is compared: graph where all rivals have it mostly, and what eager would have said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rank_rows import STEADY, ranked, row, workload

from kernelderby.hardware import find_gpu
from kernelderby.report import text
from kernelderby.report.ranking.tables import ranking_report
from kernelderby.roofline.recorded import recorded
from kernelderby.rows.measurement import Measurement, Timed

TWO = [workload("w1"), workload("w2")]


def three_times(solution: str, uuid: str, graph: float | None, eager: float, **more) -> Measurement:
    """A row of protocol 2; its empty kernel takes 5 us launched, 4 us as a graph."""
    found = row(solution, uuid, eager)
    times = {"eager": Timed(eager, found.samples_us), "busy": Timed(eager / 2, _rounds(eager / 2))}
    if graph is not None:
        times["graph"] = Timed(graph, _rounds(graph))
    return replace(
        found,
        times=times,
        protocol="cupti-graph-eager-2",
        host_us=3.0,
        wall_us=90.0,
        graph_missing="" if graph is not None else "it synchronises",
        environment={"empty_kernel_us": {"eager": 5.0, "graph": 4.0}},
        **more,
    )


def _rounds(middle: float) -> tuple[tuple[float, ...], ...]:
    return tuple((middle * factor,) * 3 for factor in STEADY)


def both(slow_graph: float | None = 30.0) -> list[Measurement]:
    """`host` is quick in a graph and slow to launch, `lean` the other way round."""
    return [three_times("host", uuid, 20.0, 60.0) for uuid in ("w1", "w2")] + [
        three_times("lean", uuid, slow_graph, 40.0) for uuid in ("w1", "w2")
    ]


def test_a_row_comes_back_from_its_line_with_its_times():
    one = three_times("host", "w1", 20.0, 60.0, setup={"seconds": 0.5, "memory_bytes": 8})
    line = one.to_trace()
    assert Measurement.from_trace(line) == one
    assert "samples_us" not in line["measurement"] and line["evaluation"]["performance"]["latency_ms"] == 0.06
    assert one.time("graph").median_us == 20.0 and one.time("busy").median_us == 30.0
    old = row("host", "w1", 60.0)
    assert old.time("eager") == Timed(60.0, old.samples_us) and old.time("graph") is None
    assert "times" not in old.to_trace()["measurement"] and Measurement.from_trace(old.to_trace()) == old


def test_graph_where_all_have_it_and_the_other_order_is_said():
    result = ranked(both(), TWO)
    assert (result.time, result.order, result.eager_order) == ("graph", ("host", "lean"), ("lean", "host"))
    cell = result.row("w1").cells["host"]
    assert (cell.latency_us, cell.eager_us) == (20.0, 60.0)
    assert result.pair("host", "lean").geomean.value == pytest.approx(1.5)
    notes = "\n".join(result.notes)
    assert "by eager time the order is another one: lean, host" in notes
    assert "another solution is fastest by eager time on seq_len=1, seq_len=2" in notes
    assert "20.0 (60.0)" in text.render(ranking_report(result))


def test_whoever_has_no_graph_is_ranked_behind_with_its_eager_time():
    """It does not move the others to eager times, by which it would be first."""
    without = [
        three_times(name, uuid, None, eager)
        for name, eager in (("aged", 90.0), ("lean", 40.0))
        for uuid in ("w1", "w2")
    ]
    result = ranked([*both()[:2], *without], TWO)
    assert (result.time, result.order) == ("graph", ("host", "lean", "aged"))
    assert result.row("w1").cells["lean"].eager_us == 40.0 and result.summary("lean").place is None
    assert any("no graph time: aged (2 workloads)" in note and "it synchronises" in note for note in result.notes)
    assert "(40.0)" in text.render(ranking_report(result))


def test_eager_where_nobody_has_a_graph():
    rows = [
        three_times(name, uuid, None, eager)
        for name, eager in (("aged", 90.0), ("lean", 40.0))
        for uuid in ("w1", "w2")
    ]
    assert (ranked(rows, TWO).time, ranked(rows, TWO).order) == ("eager", ("lean", "aged"))


def test_what_is_no_rival_and_what_lacks_a_few_graphs_do_not_decide_the_time():
    plain = [three_times("plain", uuid, None, 90.0) for uuid in ("w1", "w2", "w3")]
    rivals = [three_times("whole", uuid, 20.0, 60.0) for uuid in ("w1", "w2", "w3")]
    lacking = [three_times("lacking", uuid, graph, 40.0) for uuid, graph in (("w1", 10.0), ("w2", 10.0), ("w3", None))]
    three = [*TWO, workload("w3")]
    result = ranked([*plain, *rivals, *lacking], three)
    assert (result.time, result.order) == ("graph", ("whole", "lacking", "plain"))
    assert result.row("w3").cells["plain"].eager_us == 90.0
    assert "no graph time: lacking (1 workload): it synchronises; plain (3 workloads): it synchronises" in result.notes
    assert ranked([*plain, *lacking[1:]], three).time == "eager", "half of them are not enough"
    assert ranked(plain, three).time == "eager"


def test_the_asked_time():
    assert ranked(both(), TWO, time="eager").order == ("lean", "host")
    assert ranked(both(), TWO, time="busy").row("w1").cells["host"].latency_us == 30.0
    asked = ranked(both(slow_graph=None), TWO, time="graph")
    assert asked.order == ("host", "lean") and asked.row("w1").cells["lean"].status == "no graph time"
    assert asked.summary("lean").passed == 0
    assert any("no graph time: lean (2 workloads)" in note for note in asked.notes)


def test_the_fair_score_counts_ceilings_and_the_empty_kernel():
    """10 us of the vendor's 4.8e12 B/s are 48 MB, which take longer at the bandwidth that was measured; a tiny workload
    can take no less than the empty kernel."""
    tiny = workload("w2", floor_us=0.1)
    result = ranked(both(), [TWO[0], tiny])
    reached = 48e6 / find_gpu("h200").measured.memory_bytes_per_second * 1e6
    cells = [result.row(uuid).cells["host"] for uuid in ("w1", "w2")]
    assert [cell.fair_share for cell in cells] == pytest.approx([reached / 20, 4 / 20], rel=1e-3)
    assert result.summary("host").fair_geomean == pytest.approx((reached / 20 * 4 / 20) ** 0.5, rel=1e-3)
    assert "S fair" in text.render(ranking_report(result))


def test_rows_of_the_newest_protocol_are_ranked_though_there_are_fewer():
    old = [row("host", uuid, 60.0) for uuid in ("w1", "w2")] * 3
    rows = [*old, *both()[:2]]
    assert ranked(rows, TWO).group.protocol == "cupti-graph-eager-2"
    solutions = {
        name: SimpleNamespace(
            author="someone",
            has_code=f"hash of {name}".__eq__,
            has_kernels=lambda recorded, uuid, own=f"hash of {name}": recorded == own,
            in_place={},
        )
        for name in ("host", "lean")
    }
    assert recorded(rows, solutions).group.protocol == "cupti-graph-eager-2"  # what list and roofline show
    assert recorded(rows, solutions, protocol=old[0].protocol).group.protocol == old[0].protocol
