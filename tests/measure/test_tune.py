"""derby tune: picking and writing by hand-made times; then whole runs with real workers and the CPU's clock."""

from __future__ import annotations

import ast
import datetime
import itertools
import json
import sys
import types

import pytest
from click.testing import CliRunner
from measuring import CPU, DEFINITION, copied_set

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import Measured, config_text, pick
from kernelderby.measure.tune.regret import MEAN, WORST, Regrets, ShapeRegret, regrets
from kernelderby.measure.tune.run import tune
from kernelderby.measure.tune.turns import TuneSettings
from kernelderby.measure.wire.replies import GpuSeen

FAST, SLOW, ODD = {"warps": 4}, {"warps": 8}, {"warps": 2, "split": True}


def measured(key, heuristic, *times, workload="w"):
    return Measured(workload, key, {config_text(config): us for config, us in times}, config_text(heuristic))


def test_the_least_geometric_mean_of_a_key_wins():
    """SLOW wins the first workload by 1.5, FAST the second by 4: geomeans sqrt(30 * 10) and sqrt(20 * 40)."""
    (choice,) = pick([measured("k", SLOW, (SLOW, 20.0), (FAST, 30.0)), measured("k", SLOW, (SLOW, 40.0), (FAST, 10.0))])
    assert (choice.key, choice.workloads, choice.config) == ("k", 2, FAST)
    assert choice.us == pytest.approx(300**0.5) and choice.gain == pytest.approx((800 / 300) ** 0.5)


@pytest.mark.parametrize(("us", "config", "gain"), [(9.91, SLOW, 1.0), (9.89, FAST, 10 / 9.89)])
def test_a_tie_within_one_percent_is_the_heuristics(us, config, gain):
    (choice,) = pick([measured("k", SLOW, (SLOW, 10.0), (FAST, us))])
    assert choice.config == config and choice.gain == pytest.approx(gain)


def test_heuristics_that_differ_and_are_not_beaten_leave_no_row():
    (choice,) = pick([measured("k", SLOW, (SLOW, 10.0), (FAST, 12.0)), measured("k", FAST, (SLOW, 12.0), (FAST, 10.0))])
    assert choice.config is None and choice.gain == 1.0 and "differ by workload" in choice.note


def test_only_what_ran_on_every_workload_of_the_key_is_picked():
    rows = [measured("k", SLOW, (SLOW, 10.0), (FAST, 1.0)), measured("k", SLOW, (SLOW, 10.0), (ODD, 1.0))]
    assert pick(rows)[0].config == SLOW
    (choice,) = pick([measured("k", SLOW, (FAST, 5.0), (ODD, 4.0))])
    assert (choice.config, choice.gain, choice.note) == (ODD, None, "the heuristic's choice failed")
    (choice,) = pick([measured("k", SLOW, (FAST, 5.0)), measured("k", SLOW, (ODD, 5.0))])
    assert choice.config is None and "no configuration" in choice.note


def test_keys_are_told_apart_and_sorted():
    choices = pick([measured("b", SLOW, (SLOW, 1.0)), measured("a", SLOW, (SLOW, 2.0), (FAST, 1.0))])
    assert [(one.key, one.config) for one in choices] == [("a", FAST), ("b", SLOW)]


def test_the_table_is_written_the_same_every_time_and_keeps_other_gpus(tmp_path):
    path = tmp_path / "tuned.py"
    old = {
        "NVIDIA B200": {"date": "2026-01-02", "table": {"z": SLOW}},
        "NVIDIA H200": {"date": "2026-01-01", "table": {"b": SLOW, "gone": SLOW, "kept": ODD}},
    }
    found = table.merged(
        old, "NVIDIA H200", "2026-11-22", {"b": FAST, "a": {"name": 'a "quoted" one', "on": False}}, left={"gone"}
    )
    table.write(path, "s", found)
    assert (
        path.read_text()
        == '''\
"""Written by `derby tune s`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA B200": {
        "date": "2026-01-02",
        "table": {
            "z": {"warps": 8},
        },
    },
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "a": {"name": "a \\"quoted\\" one", "on": False},
            "b": {"warps": 4},
            "kept": {"warps": 2, "split": True},
        },
    },
}
'''
    )
    assert table.read(path) == found and table.text("s", table.read(path)) == path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.py"]
    assert table.text("s", {}).endswith("\n\nFOUND = {}\n") and table.read(tmp_path / "none.py") == {}


def test_losses_are_thousandths_above_the_least_time_and_a_key_that_is_measured_again_loses_its_former_ones(tmp_path):
    path = tmp_path / "tuned.py"
    fast, slow = config_text(FAST), config_text(SLOW)
    old = table.merged({}, "NVIDIA H200", "d", {}, shapes=[("a", {fast: 2.0, slow: 2.5}), ("b 1", {slow: 3.0})])
    assert old["NVIDIA H200"]["configs"] == [FAST, SLOW]
    assert old["NVIDIA H200"]["losses"] == [["a", [0, 250]], ["b 1", [None, 0]]]
    new = [("a", {fast: 4.0, config_text(ODD): 2.0}), ("a", {fast: 1.0})]
    table.write(path, "s", table.merged(old, "NVIDIA H200", "e", {"k": FAST}, shapes=new))
    entry = table.read(path)["NVIDIA H200"]
    assert entry["configs"] == [ODD, FAST, SLOW] and entry["table"] == {"k": FAST}
    assert entry["losses"] == [["a", [0, 1000, None]], ["a", [None, 0, None]], ["b 1", [None, None, 0]]]
    assert table.text("s", table.read(path)) == path.read_text()
    many = {config_text({"n": n}): 1.0 + n for n in range(99)}
    wide = table.text("s", table.merged({}, "g", "d", {}, shapes=[("key", many)]))
    assert max(map(len, wide.splitlines())) <= 120
    path.write_text(wide)
    assert table.shapes_of(table.read(path)["g"])[0][1][config_text({"n": 98})] == 99


def test_a_write_that_fails_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "tuned.py"
    path.write_text("FOUND = {}\n")
    monkeypatch.setattr("kernelderby.store.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(DerbyError, match="disk full"):
        table.write(path, "s", {"NVIDIA H200": {"date": "d", "table": {}}})
    assert path.read_text() == "FOUND = {}\n" and [file.name for file in tmp_path.iterdir()] == ["tuned.py"]


@pytest.mark.parametrize(
    "broken",
    ["FOUND = {", "FOUND = dict()", "x = 1", "FOUND = [1]", "FOUND = {'g': {'date': 1}}", "FOUND = {}\nFOUND = {}"],
)
def test_a_broken_table_is_one_line_with_its_mend(tmp_path, broken):
    path = tmp_path / "tuned.py"
    path.write_text(broken)
    mends = r"(write FOUND = \{\} and tune again|mend the field)"
    with pytest.raises(DerbyError, match=f"tuned.py: FOUND.*{mends}") as raised:
        table.read(path)
    assert "\n" not in str(raised.value)


# Sleeps as long as the configuration says: 8 rows in buckets of 8, larger ones in another.
MAIN = """
import importlib
import os
import time

import torch

__path__ = [os.path.dirname(__file__)]
tuned = importlib.import_module(f"{__name__}.tuned")


def tuning_key(x, y, factor):
    return "rows<=8" if len(x) <= 8 else "rows>8"


def candidates(x, y, factor):
    return [{"ms": 80, "how": "add"}, {"ms": 1, "how": "add"}, *EXTRA]


def run_with(config, x, y, factor, out):
    time.sleep(config["ms"] / 1e3)
    if config["how"] == "die":
        os._exit(3)
    if config["how"] == "raise":
        raise ValueError("no such tile\\nand more")
    if config["how"] == "input":
        x.add_(1)
    torch.add(x, y, alpha=factor + (config["how"] == "wrong"), out=out)


def run(x, y, factor, out):
    run_with(candidates(x, y, factor)[0], x, y, factor, out)
"""


def tunable(root, name="sleeper", extra=(), main=MAIN):
    honest = root / "solutions" / "tests" / "elementwise" / DEFINITION / "honest"
    folder = honest.with_name(name)
    folder.mkdir()
    (folder / "solution.toml").write_text((honest / "solution.toml").read_text().replace('"honest"', f'"{name}"'))
    (folder / "main.py").write_text(main.replace("*EXTRA", f"*{list(extra)!r}"))
    (folder / "tuned.py").write_text("FOUND = {}\n")
    return folder


def run(root, *names, **settings):
    catalog = Catalog.open(root)
    jobs = [(catalog.solution(name), catalog.workloads(DEFINITION)) for name in names]
    return tune(catalog, CPU, TuneSettings(**{"rounds": 2, "iterations": 3, "timeout_seconds": 30, **settings}), jobs)


def logged(root, name="sleeper"):
    return [json.loads(line) for line in (root / "reports" / "tune" / f"{name}.jsonl").read_text().splitlines()]


def test_a_whole_run(tmp_path, monkeypatch):
    root = copied_set(tmp_path)
    # One day for both runs, because their tables are compared and the second may end after midnight.
    days = types.SimpleNamespace(today=lambda: datetime.date(2026, 11, 22))
    monkeypatch.setattr(
        "kernelderby.measure.tune.run.datetime", types.SimpleNamespace(**{**vars(datetime), "date": days})
    )
    broken = [{"ms": 1, "how": how} for how in ("wrong", "input", "raise", "die")]
    # The one between them runs in the process that the wrong ones have left.
    folder = tunable(root, extra=[*broken[:2], {"ms": 60, "how": "add"}, *broken[2:]])
    (result,) = run(root, "sleeper")
    assert result.path == folder / "tuned.py" and result.left_over == []
    found = ast.literal_eval(result.path.read_text().partition("FOUND = ")[2])["CPU"]["table"]
    assert found == {key: {"ms": 1, "how": "add"} for key in ("rows<=8", "rows>8")}
    assert all(1.25 < one.gain < 90 for one in result.choices)

    workloads = len(Catalog.open(root).workloads(DEFINITION))
    assert len(result.failed) == 4 * workloads and all("\n" not in line for line in result.failed)
    for how, told in (
        ("wrong", "wrong_values"),
        ("input", "writes into its input x"),
        ("raise", "no such tile"),
        ("die", "exit"),
    ):
        lines = [line for line in result.failed if f'"how": "{how}"' in line]
        assert len(lines) == workloads and all(told in line.lower() for line in lines), lines

    rows = logged(root)
    timed = [row for row in rows if "samples_us" in row]
    assert all(len(row["samples_us"]) == 3 and row["gpu"] == "CPU" and row["protocol"] == "cpu-wall" for row in timed)
    # 80 ms is the heuristic's and stays; 60 ms is hopeless beside 1 ms, also where the machine stands still for a
    # moment (of three the median counts), and has one turn only.
    turns = {ms: sum(row["config"] == {"ms": ms, "how": "add"} for row in timed) for ms in (80, 1, 60)}
    assert turns == {80: 2 * workloads, 1: 2 * workloads, 60: workloads}
    assert sum("status" in row for row in rows) == 4 * workloads

    solution = Catalog.open(root).solution("sleeper")  # the new table is a source of the solution
    assert '"ms": 1' in solution.sources["tuned.py"]
    first = table.read(result.path)
    # What each shape took beside its best: 1 ms, and 60 and 80.
    points = table.shapes_of(first["CPU"])
    assert len(points) == workloads and {len(times) for _, times in points} == {3}
    assert all(min(times, key=times.get) == config_text({"ms": 1, "how": "add"}) for _, times in points)
    run(root, "sleeper")
    again = table.read(result.path)
    assert again["CPU"]["table"] == first["CPU"]["table"] and len(again["CPU"]["losses"]) == workloads
    assert len(logged(root)) == 2 * len(rows)


def test_keys_that_are_entries_of_a_librarys_file_are_written_as_that_file_too(tmp_path):
    """As vLLM's tables of experts: a file of a shape, an entry for each number of tokens; entries by number."""
    root = copied_set(tmp_path)
    tunable(root, main=MAIN.replace('"rows<=8" if len(x) <= 8 else "rows>8"', 'f"N={x.shape[1]}.json {len(x)}"'))
    (result,) = run(root, "sleeper")
    best = {"ms": 1, "how": "add"}
    [path] = result.files
    assert path.parent == root / "reports" / "tune" / "sleeper"
    assert list(json.loads(path.read_text()).items()) == [("8", best), ("32", best)]
    table.write_library_files(path.parent, {f"{path.name} 7": FAST, "plain key": SLOW, "../N=1.json 1": SLOW})
    kept = json.loads(path.read_text())
    assert [*kept] == ["7", "8", "32"] and kept["7"] == FAST
    assert [*path.parent.iterdir()] == [path] and not (path.parent.parent / "N=1.json").exists()
    path.write_text("[]")
    with pytest.raises(DerbyError, match=path.name):
        table.write_library_files(path.parent, {f"{path.name} 7": FAST})


def test_several_solutions_and_a_budget(tmp_path, monkeypatch):
    """A clock that goes on by one each time that it is looked at: each solution gets half of the 100, which is some 20
    rounds of its first workload."""
    ticks = itertools.count()
    for module in ("run", "turns"):
        clock = types.SimpleNamespace(monotonic=lambda: next(ticks))
        monkeypatch.setattr(f"kernelderby.measure.tune.{module}.time", clock)
    root = copied_set(tmp_path)
    for name in ("first", "second"):
        tunable(root, name)
    for result in run(root, "first", "second", budget_seconds=100, rounds=50, iterations=1):
        assert [one.key for one in result.choices] == ["rows<=8"] and result.path.is_file()
        assert len(result.left_over) == len(Catalog.open(root).workloads(DEFINITION)) - 1
        assert 20 < len(logged(root, result.solution)) < 60


def test_a_budget_that_is_gone_writes_nothing(tmp_path):
    root = copied_set(tmp_path)
    folder = tunable(root)
    (result,) = run(root, "sleeper", budget_seconds=1e-6)
    assert result.path is None and len(result.left_over) == len(Catalog.open(root).workloads(DEFINITION))
    assert (folder / "tuned.py").read_text() == "FOUND = {}\n"


def test_what_cannot_be_tuned_is_said_first(tmp_path):
    root = copied_set(tmp_path)
    with pytest.raises(DerbyError, match=r"honest/main.py: has no tuning_key, candidates, run_with beside run\(\)"):
        run(root, "honest")
    folder = tunable(root)
    (folder / "tuned.py").write_text("FOUND = 3\n")
    with pytest.raises(DerbyError, match="tuned.py: FOUND: must be given once"):
        run(root, "sleeper")


# Chooses the slow one for few rows, and for many one that is no candidate.
CHOOSING = (
    MAIN
    + """

def choose(x, y, factor):
    return {"ms": 80, "how": "add"} if len(x) <= 8 else {"ms": 20, "how": OTHER}
"""
)


def test_the_regret_is_what_the_choice_takes_over_the_best_candidate(tmp_path):
    root = copied_set(tmp_path)
    folder = tunable(root, extra=[{"ms": 60, "how": "add"}], main=CHOOSING.replace("OTHER", '"add"'))
    catalog = Catalog.open(root)
    workloads = catalog.workloads(DEFINITION)
    jobs = [(catalog.solution("sleeper"), workloads)]
    (result,) = regrets(catalog, CPU, TuneSettings(rounds=2, iterations=3, timeout_seconds=30), jobs)
    assert len(result.shapes) == len(workloads) and not result.failed and not result.holds
    for one in result.shapes:
        few = one.chosen == {"ms": 80, "how": "add"}
        assert one.best == {"ms": 1, "how": "add"} and one.share == pytest.approx(one.chosen_us / one.best_us - 1)
        assert few or one.chosen == {"ms": 20, "how": "add"}
        assert one.share > 0.1
    assert (folder / "tuned.py").read_text() == "FOUND = {}\n"
    # The choice is timed in every round, however hopeless; the one that is hopeless and not chosen in the first.
    turns = {ms: sum(row.get("config") == {"ms": ms, "how": "add"} for row in logged(root)) for ms in (80, 60)}
    assert turns == {80: 2 * len(workloads), 60: len(workloads)}


def test_a_choice_that_is_wrong_has_no_regret_and_does_not_hold(tmp_path):
    root = copied_set(tmp_path)
    tunable(root, main=CHOOSING.replace("OTHER", '"wrong"'))
    catalog = Catalog.open(root)
    jobs = [(catalog.solution("sleeper"), catalog.workloads(DEFINITION))]
    (result,) = regrets(catalog, CPU, TuneSettings(rounds=1, iterations=2, timeout_seconds=30), jobs)
    wrong = [one for one in result.shapes if one.share is None]
    assert wrong and len(result.failed) == len(wrong) and not result.holds
    assert result.to_json()["shapes"][result.shapes.index(wrong[0])]["chosen_us"] is None


@pytest.mark.parametrize(
    ("chosen_us", "holds"),
    [((10.0, 10.0), True), ((10.2, 10.3), True), ((10.0, 10.7), False), ((11.1, *[10.0] * 9), False), ((None,), False)],
)
def test_a_regret_holds_up_to_a_mean_and_a_worst(tmp_path, chosen_us, holds):
    """At 10 us: 3 % in the mean, 10 % at worst, and no regret without a time."""
    shapes = [ShapeRegret("s", FAST, us, SLOW, 10.0) for us in chosen_us]
    assert Regrets("s", tmp_path, shapes).holds is holds
    assert (MEAN, WORST) == (0.03, 0.10)
    assert not Regrets("s", tmp_path, shapes, unmeasured=["t"]).holds and not Regrets("s", tmp_path).holds


def test_a_solution_that_does_not_say_what_it_chose_is_named(tmp_path):
    root = copied_set(tmp_path)
    tunable(root)
    catalog = Catalog.open(root)
    with pytest.raises(DerbyError, match="sleeper/main.py: has no choose beside run"):
        regrets(catalog, CPU, TuneSettings(), [(catalog.solution("sleeper"), catalog.workloads(DEFINITION))])


def command(*arguments):
    from kernelderby.cli.tune import command as verb

    return CliRunner().invoke(verb, arguments)


def test_without_a_gpu_it_is_one_line(tmp_path, monkeypatch):
    root = copied_set(tmp_path)
    tunable(root)
    monkeypatch.setattr("kernelderby.measure.machine.probe.find_machine", lambda *_: CPU)
    result = command("sleeper", "--root", str(root))
    assert isinstance(result.exception, DerbyError) and "so nothing can be tuned" in str(result.exception)


def test_the_command_prints_a_table_and_json(tmp_path, monkeypatch):
    """With a machine that says it has a GPU, over CPU workers."""
    from dataclasses import replace

    root = copied_set(tmp_path)
    tunable(root)
    machine = replace(CPU, gpu=GpuSeen("NVIDIA H200", "9.0", str(tmp_path)))
    monkeypatch.setattr("kernelderby.measure.machine.probe.find_machine", lambda *_: machine)
    options = ("--root", str(root), "--workloads", "8", "--rounds", "1", "--iterations", "2")
    result = command("sleeper", *options)
    assert result.exit_code == 0, result.output
    assert "rows<=8" in result.output and "how=add ms=1" in result.output and "derby pack" in result.output
    result = command("sleeper", *options, "--json")
    found = json.loads(result.output)
    assert found["gpu"] == "NVIDIA H200" and found["solutions"][0]["choices"][0]["config"] == {"ms": 1, "how": "add"}
    assert command("sleper", "--root", str(root)).exception.args[0].count("sleeper")
    assert "NVIDIA H200" in table.read(root / "solutions/tests/elementwise" / DEFINITION / "sleeper" / "tuned.py")


def test_the_command_prints_regrets_of_fresh_shapes(tmp_path, monkeypatch):
    """With a machine that says it has a GPU, over CPU workers; the shapes are listed ones that pass for fresh."""
    from dataclasses import replace

    root = copied_set(tmp_path)
    tunable(root, main=CHOOSING.replace("OTHER", '"add"'))
    machine = replace(CPU, gpu=GpuSeen("NVIDIA H200", "9.0", str(tmp_path)))
    monkeypatch.setattr("kernelderby.measure.machine.probe.find_machine", lambda *_: machine)
    asked = []

    def shapes(catalog, solutions, definitions, secret, count):
        asked.append((list(solutions), secret, count))
        return {DEFINITION: catalog.workloads(DEFINITION)[:count]}

    monkeypatch.setattr("kernelderby.measure.run.fresh.fresh_workloads", shapes)
    options = ("--root", str(root), "--regret", "1", "--secret", "ab" * 16, "--rounds", "1", "--iterations", "2")
    result = command("sleeper", *options)
    assert result.exit_code == 1, result.output
    assert asked == [(["sleeper"], "ab" * 16, 1)]
    assert "regret: mean" in result.output and "how=add" in result.output and "ab" * 16 in result.output
    (found,) = json.loads(command("sleeper", *options, "--json").output)["solutions"]
    assert found["holds"] is False and found["worst"] == found["mean"] == found["shapes"][0]["regret"] > 0.1
    tuned = root / "solutions/tests/elementwise" / DEFINITION / "sleeper" / "tuned.py"
    assert tuned.read_text() == "FOUND = {}\n"
    result = command("sleeper", *options[:2], "--fresh", "1", *options[4:])
    assert result.exit_code == 0 and "ab" * 16 in result.output, result.output
    entry = table.read(tuned)["NVIDIA H200"]
    assert entry["table"] == {} and len(entry["losses"]) == 1
    for wrong in (("--regret", "1", "--workloads", "8"), ("--secret", "ab" * 16), ("--fresh", "1", "--origin", "x")):
        assert command("sleeper", "--root", str(root), *wrong).exit_code == 2


def test_the_parent_needs_no_torch():
    import subprocess

    code = "import sys, kernelderby.measure.tune.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_graphs_on_a_gpu(tmp_path):
    """Forty launches in a graph against one, and a call that cannot be captured."""
    from kernelderby.measure.machine.probe import find_machine

    root = copied_set(tmp_path)
    main = MAIN.replace(
        'time.sleep(config["ms"] / 1e3)',
        """
    for _ in range(config["ms"] * 5):
        torch.add(x, y, out=out)
    if config["how"] == "sync":
        torch.cuda.synchronize()""",
    )
    folder = tunable(root, extra=[{"ms": 1, "how": "sync"}], main=main)
    catalog, machine = Catalog.open(root), find_machine(root, "cuda")
    jobs = [(catalog.solution("sleeper"), catalog.workloads(DEFINITION))]
    (result,) = tune(catalog, machine, TuneSettings(rounds=2), jobs)
    assert all("no CUDA graph" in line and '"sync"' in line for line in result.failed) and result.failed
    assert all(one.config == {"ms": 1, "how": "add"} and one.gain > 2 for one in result.choices) and result.choices
    assert machine.name in table.read(folder / "tuned.py")
