"""Order, settled ratios, disturbed turns, and how long a run may take."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from measuring import CPU, measure

from kernelderby.catalog import Catalog
from kernelderby.cli import progress
from kernelderby.measure.run import turns
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import left_seconds


def test_the_order_changes_from_round_to_round_and_is_the_same_again():
    names = ["a", "b", "c", "d"]
    orders = [turns.shuffled(names, "session", "uuid", number) for number in range(20)]
    assert all(sorted(order) == names for order in orders) and len({tuple(order) for order in orders}) > 8
    assert [turns.shuffled(names, "session", "uuid", number) for number in range(20)] == orders
    assert [turns.shuffled(names, "other", "uuid", number) for number in range(20)] != orders


def test_the_width_of_a_paired_interval():
    """Three rounds whose log ratios are -0.01, 0 and 0.01: standard deviation 0.01, t = 4.303."""
    first = [[math.exp(log) * 10] * 3 for log in (-0.01, 0.0, 0.01)]
    second = [[10.0] * 3] * 3
    assert turns.interval_width(first, second) == pytest.approx(math.expm1(2 * 4.303 * 0.01 / math.sqrt(3)))
    assert turns.interval_width(second, second) == 0 < turns.NARROW
    drifting = [[10.0], [20.0], [5.0], [40.0]]  # both the same way: what pairing is for
    assert turns.interval_width(drifting, [[2 * each for each in samples] for samples in drifting]) < 1e-9
    assert turns.interval_width(first[:2], second[:2]) == math.inf


@pytest.mark.parametrize(
    ("reasons", "processes", "text"),
    [
        ((), [1, 2], ""),
        (("power cap",), [1, 2], ""),
        (("hardware thermal",), [1], "slowed down: hardware thermal"),
        ((), [1, 2, 3], "1 other process used"),
        ((), None, ""),
    ],
)
def test_a_disturbed_turn(reasons, processes, text):
    sensors = SimpleNamespace(processes=lambda: processes)
    found = turns.disturbance(sensors, {"throttled_by": list(reasons)}, own_processes=2)
    assert (text in found) and bool(found) == bool(text)
    assert turns.disturbance(None, {}, 0) == ""


def test_the_first_two_go_on_until_their_ratio_settles(misbehaviours):
    """On a busy CPU it will not settle below 1 % in three rounds; the others stop."""
    import shutil

    folder = misbehaviours / "solutions/tests/elementwise/scaled_add_n16"
    for name in ("second", "slow"):
        shutil.copytree(folder / "honest", folder / name)
        toml = folder / name / "solution.toml"
        toml.write_text(toml.read_text().replace('"honest"', f'"{name}"'))
    (folder / "slow/main.py").write_text(
        "import time\n\nimport torch\n\n\ndef run(x, y, factor, out):\n    time.sleep(0.05)\n"
        "    torch.add(x, y, alpha=factor, out=out)\n"
    )
    rows = {
        row.solution: row
        for row in measure(
            misbehaviours, ["honest", "second", "slow"], workloads=("8",), rounds=3, most_rounds=5, iterations=2
        )
    }
    assert len(rows["slow"].samples_us) == 3
    assert 3 <= len(rows["honest"].samples_us) == len(rows["second"].samples_us) <= 5


def test_a_plan_says_how_long_and_learns_from_rows(misbehaviours):
    catalog = Catalog.open(misbehaviours)
    first = make_plan(catalog, CPU, Settings(), ["honest"])
    assert first.pairs == 2 and first.measured_like == 0 and first.seconds > 0
    rows = measure(misbehaviours, ["honest"])
    second = make_plan(Catalog.open(misbehaviours), CPU, Settings(again=True), ["honest"])
    assert second.measured_like == 2
    assert second.seconds == pytest.approx(10 + sum(row.environment["seconds"] for row in rows))


def test_what_a_run_says_of_its_time_off_a_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for seconds, most, told in (
        (0.0, None, "measuring: 1 of 700\n"),
        (1000.0, None, "measuring: 1 of 700, about 21 min left\n"),
        (0.0, 300, "measuring: 1 of 700, at most 4 min left\n"),
        (1000.0, 300, "measuring: 1 of 700, at most 4 min left\n"),
        (0.0, 20, "measuring: 1 of 700, the last one\n"),
    ):
        now[0] = 0.0
        with progress.bar("measuring", 700, seconds=seconds, most=most) as advance:
            now[0] = 31.0
            advance("a row")
            advance("another")
        assert capsys.readouterr().err == told


def test_what_a_row_holds(misbehaviours):
    row = measure(misbehaviours, ["honest"], workloads=("8",))[0]
    assert set(row.times) == {"eager"} and row.graph_missing == "a CPU has no CUDA graphs"
    assert row.host_us > 0 and row.wall_us > 0
    assert row.environment["empty_kernel_us"]["eager"] > 0 and row.environment["empty_kernel_us"]["graph"] is None
    assert len(row.environment["secret"]) == 32
    assert Catalog.open(misbehaviours).traces(row.definition)[-1] == row


def test_the_time_left_stands_on_measured_rows():
    assert left_seconds(0, 10, 5.0, 100.0) == 95.0
    assert left_seconds(10, 10, 50.0, 100.0) == 0
    assert 45 < left_seconds(5, 10, 50.0, 100.0) < 55
    assert left_seconds(0, 700, 30.0, 0.0) is None and left_seconds(4, 700, 30.0, 0.0) is None, "who knows?"
    assert left_seconds(70, 700, 30.0, 0.0) == 270 and left_seconds(2, 3, 30.0, 0.0) is None
    assert left_seconds(1, 700, 30.0, 1000.0) < 1400, "the first step says little: by its pace it is six hours"
    assert left_seconds(690, 700, 3000.0, 1000.0) < 100
    assert [progress.duration(each) for each in (40, 720, 3900)] == ["40 s", "12 min", "1 h 05 min"]


def test_the_least_work_is_measured_first(misbehaviours, checkout):
    plan = make_plan(Catalog.open(misbehaviours), CPU, Settings(), ["honest"])
    rows = [job.workload.cost.needed() if job.workload.cost else 0 for job in plan.jobs]
    assert rows == sorted(rows) and len(rows) > 1
    attention = make_plan(Catalog.open(checkout), CPU, Settings(again=True), ["unified_attention_baseline"])
    tokens = [job.workload.axes["num_tokens"] for job in attention.jobs if job.workload.origin == "survey"]
    assert tokens[:2] == [7, 16] and tokens[-2:] == [792320, 526336] and len(tokens) == 25


def test_steps_that_nobody_can_count_say_what_goes_on(capsys, monkeypatch):
    """Off a terminal, where a gate looks as often as it must."""
    monkeypatch.setattr(progress, "_EVERY_SECONDS", -1.0)
    with progress.bar("gating", 0) as advance:
        advance("start 2 of at most 16", done=0)
    assert capsys.readouterr().err == "gating: start 2 of at most 16\n"
