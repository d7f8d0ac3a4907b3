"""A run with a budget of seconds: whose turn it is, and what is left."""

from types import SimpleNamespace

import pytest
from measuring import CPU, copied_set

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.plan import Settings, in_time, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.wire.replies import GpuSeen

IMPORTANCE = {"attention": 30.0, "norm": 10.0, "rope": 2.0}


def jobs_of(**counts):
    return [
        SimpleNamespace(definition=SimpleNamespace(name=name), workload=SimpleNamespace(uuid=f"{name}-{number}"))
        for name, count in counts.items()
        for number in range(count)
    ]


class Clock:
    """Each job takes its operator's seconds."""

    def __init__(self):
        self.time = 0.0

    def taken(self, jobs, seconds, took):
        found = []
        for job in in_time(jobs, seconds, IMPORTANCE, now=lambda: self.time):
            found.append(job.definition.name)
            self.time += took[job.definition.name]
        return found


def test_with_enough_time_all_are_taken_the_most_important_operator_first():
    found = Clock().taken(jobs_of(rope=3, norm=2, attention=4), 1000, {"rope": 1, "norm": 1, "attention": 1})
    assert found == ["attention"] * 4 + ["norm"] * 2 + ["rope"] * 3


def test_every_operator_gets_a_part_and_the_important_ones_more():
    clock = Clock()
    found = clock.taken(jobs_of(rope=90, norm=90, attention=90), 60, dict.fromkeys(IMPORTANCE, 1.0))
    counts = {name: found.count(name) for name in IMPORTANCE}
    assert 60 <= clock.time <= 61 and sum(counts.values()) == len(found)
    # of 60 s: 10 + 30 * 30 / 42 for attention; of the 28 s left 7 + 14 * 10 / 12 for norm
    assert counts == {"attention": 32, "norm": 19, "rope": 9}


def test_what_one_does_not_need_goes_to_the_others_and_to_what_was_left():
    clock = Clock()
    found = clock.taken(jobs_of(rope=1, norm=10, attention=100), 60, dict.fromkeys(IMPORTANCE, 1.0))
    assert found[-1] == "attention" and found.count("rope") == 1 and 60 <= clock.time <= 61


def test_a_slow_operator_takes_one_and_leaves_the_rest():
    found = Clock().taken(jobs_of(rope=5, attention=5), 20, {"rope": 1, "attention": 15})
    assert found[0] == "attention" and found.count("attention") == 1 and found.count("rope") == 5


def test_an_operator_without_a_published_importance_counts_as_the_mean():
    found = Clock().taken(jobs_of(mine=9, rope=9, attention=9), 9, dict.fromkeys((*IMPORTANCE, "mine"), 1.0))
    assert list(dict.fromkeys(found)) == ["attention", "mine", "rope"]
    assert Clock().taken(jobs_of(a=2, b=2), 9, {"a": 1, "b": 1}) in (["a", "a", "b", "b"], ["b", "b", "a", "a"])


def test_the_shapes_are_a_sample_and_not_the_smallest():
    jobs = jobs_of(norm=50)
    taken = [job.workload.uuid for job in in_time(jobs, 1e9, {})]
    assert sorted(taken) == sorted(job.workload.uuid for job in jobs) and taken != [job.workload.uuid for job in jobs]
    assert taken == [job.workload.uuid for job in in_time(list(reversed(jobs)), 1e9, {})]


@pytest.mark.parametrize(("seconds", "rows"), [(1e-6, 1), (600.0, 2)])
def test_a_run_stops_when_its_time_is_over_and_says_what_is_left(misbehaviours, seconds, rows):
    notes = []

    class Noting(Observer):
        def note(self, line):
            notes.append(line)

    settings = Settings(rounds=2, most_rounds=2, iterations=4, timeout_seconds=30, budget_seconds=seconds)
    catalog = Catalog.open(misbehaviours)
    plan = make_plan(catalog, CPU, settings, ["honest"])
    assert plan.pairs == 2
    found = Runner(catalog, CPU, settings, Noting()).run(plan)
    if seconds > 1:
        assert len(found) == rows and not notes
    else:
        assert len(found) < 2 and any("the time is over: " in note for note in notes)
    again = make_plan(Catalog.open(misbehaviours), CPU, settings, ["honest"])
    assert again.pairs == 2 - len(found)


def test_who_compiles_for_long_is_named(tmp_path, monkeypatch):
    root, told = copied_set(tmp_path), []
    source = root / "solutions/tests/elementwise/scaled_add_n16/honest/main.py"
    once = "import functools\nimport time\n\n\n@functools.cache\ndef compiled():\n    time.sleep(1)\n\n\n"
    source.write_text(once + source.read_text().replace("    torch.add", "    compiled()\n    torch.add"))
    monkeypatch.setattr("kernelderby.measure.run.contest._WAITING_SECONDS", 0.2)

    class Told(Observer):
        def waiting(self, solutions, seconds):
            told.append((solutions, seconds))

    settings = Settings(rounds=1, most_rounds=1, iterations=2, timeout_seconds=30)
    catalog = Catalog.open(root)
    Runner(catalog, CPU, settings, Told()).run(make_plan(catalog, CPU, settings, ["honest"], workloads=("8",)))
    assert told and told[0][0] == ["honest"] and 0.2 <= told[0][1] < 20


def test_workloads_may_be_named_across_operators(checkout, monkeypatch):
    """And before any library is tried."""
    catalog = Catalog.open(checkout)
    machine = Machine("cuda", GpuSeen("NVIDIA H200", "9.0"), protocol="cupti-graph-eager-2")
    names = ["rms_norm", "topk_filter"]
    words = [catalog.workloads(name)[0].uuid for name in names]
    solutions = [f"{name}_baseline" for name in names]
    monkeypatch.setattr("kernelderby.measure.run.plan.why_not", lambda *_: None)
    monkeypatch.setattr("kernelderby.measure.run.plan.try_modules", lambda *_: None)
    plan = make_plan(catalog, machine, Settings(again=True), solutions, names, words)
    assert {(job.definition.name, job.workload.uuid) for job in plan.jobs} == set(zip(names, words, strict=True))
    assert len(make_plan(catalog, machine, Settings(again=True), solutions, names, words[:1]).jobs) == 1
    monkeypatch.setattr("kernelderby.measure.run.plan.try_modules", lambda *_: pytest.fail("imports first"))
    with pytest.raises(DerbyError, match="no workload 'ffffffff' in any of 2 operators"):
        make_plan(catalog, machine, Settings(), solutions, names, [*words, "ffffffff"])
