"""derby gate: its error rates on a simulated machine, its formulas by hand, and whole runs on a CPU."""

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from measuring import copied_set

from kernelderby.measure.fence import landlock
from kernelderby.measure.wire.quoted import quoted
from kernelderby.measure.wire.replies import Failed
from kernelderby.rows.measurement import Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY
from kernelderby.statistics.gate import (
    CANNOT_TELL,
    NO_REGRESSION,
    ORDER,
    REGRESSION,
    differences,
    gated,
    is_decided,
    looks,
)
from kernelderby.statistics.rank_test import signed_rank_interval


@pytest.mark.parametrize(
    ("words", "verdict"),
    [(JUDGE_WITHOUT_MEMORY, CANNOT_TELL), (quoted(JUDGE_WITHOUT_MEMORY), REGRESSION), ("", REGRESSION)],
)
def test_a_candidate_that_says_what_the_judge_says_is_a_regression_all_the_same(words, verdict):
    pytest.importorskip("torch")
    from kernelderby.measure.run import gate

    out = gate._Out("candidate 1", Failed(Status.OUT_OF_MEMORY, words))
    assert gate._failed(None, out).verdict == verdict
    assert gate._failed(None, gate._Out("base 1", Failed(Status.RAISED, words))).verdict == CANNOT_TELL


@pytest.fixture(scope="module")
def rates():
    spec = spec_from_file_location("rates", Path(__file__).parents[2] / "benchmarks/gate_error_rates.py")
    module = sys.modules["rates"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def simulated(rates):
    """The same machine as `python benchmarks/gate_error_rates.py` has, which runs it longer."""
    random = np.random.default_rng(7)
    return lambda change, runs: [rates.simulated(random, change).verdict for _ in range(runs)]


def test_false_alarms_and_finds_on_a_simulated_machine(simulated):
    """At most 1 alarm in 100 runs of base against base; 95 of 100 slowdowns of 2 % of a kernel of 50 us are found."""
    same = simulated(0.0, 200)
    assert same.count(REGRESSION) <= 2 and same.count(NO_REGRESSION) >= 198
    assert simulated(0.02, 200).count(REGRESSION) >= 196
    assert simulated(-0.02, 50).count(NO_REGRESSION) == 50


def test_processes_far_off_hide_no_slowdown(rates):
    """As cards differ (docs/gate.md): one process in ten is off by several percent."""
    offsets = [0.001 * each for each in (0, 2, -3, 4, -1, 1, -2, 3, -4, 0, 2, -3, 1, -1, 3, -2, 1, 0, 60, -30)]
    random, machine = (
        np.random.default_rng(5),
        rates.Recorded([[0.0, 0.003, -0.003, 0.004, -0.004, 0.001]], offsets),
    )
    found = [[rates.simulated(random, change, machine=machine).verdict for _ in range(60)] for change in (0.02, 0.0)]
    assert found[0].count(REGRESSION) >= 57 and found[1].count(REGRESSION) == 0 and found[1].count(NO_REGRESSION) >= 50


def test_a_machine_of_recorded_rounds(rates, checkout):
    """The rounds of a row back and forth, wider by what its own median hides."""
    steady, moving = [each for _, each in rates.recorded(checkout, "NVIDIA H200")][-2:]
    assert steady.rounds == moving.rounds and len(steady.rounds) > 100 and not steady.offsets
    assert 0.0005 < median(map(abs, moving.offsets)) < 0.01
    assert rates._rounds([[1.0, 2.0, 1.0], [1.0], [1.0], [exp(0.03)]]) == pytest.approx([0, 0, 0, 0.03 * sqrt(4 / 3)])
    assert rates._rounds([[1.0]] * 3) == []
    offset, block = rates.Recorded([[0.0, 1.0, 2.0, 3.0]], [0.25])(np.random.default_rng(1))
    turns = block()
    assert offset() == 0.25 and len(turns) == len(ORDER)
    assert {abs(one - other) for one, other in pairwise(turns)} == {1.0}


def turns_of(**us):
    """A block of ORDER: `base` and `candidate`, and what one process has instead (base_2=...)."""
    return [us.get(role.replace(" ", "_"), us[role.partition(" ")[0]]) for role in ORDER]


def test_differences_by_hand():
    """A drift that is linear over a block leaves all alike; an outlier of one block moves no median."""
    drifting = [50 * exp(0.01 * place) for place in range(len(ORDER))]
    assert differences([drifting] * 3) == pytest.approx([0.0] * 3)
    slower = turns_of(base=50.0, candidate=51.0)
    with_outlier = [*slower]
    with_outlier[1] = 90.0
    assert differences([slower, with_outlier, slower]) == pytest.approx([log(1.02)] * 3)
    assert differences([turns_of(base=50.0, base_2=25.0, candidate=50.0)]) == pytest.approx([0.0, log(2), 0.0])


def test_verdicts_by_hand():
    """With 12 differences the third smallest average bounds the shift at a chance of 0.005 / 4: sums of ranks up to
    2 have 3 of 4096 cases."""
    blocks = [turns_of(base=50.0, candidate=51.0)] * 3
    found = gated([blocks] * 4, 0.01)
    assert found.verdict == REGRESSION and found.change == pytest.approx(0.02) and found.starts == 4
    assert found.low == found.high == pytest.approx(0.02) and found.noise == 0.0
    assert found.base_us == 50.0 and found.candidate_us == 51.0
    assert gated([blocks] * 4, 0.03).verdict == NO_REGRESSION  # it does not count
    steps = [
        [turns_of(base=1.0, **{f"candidate_{n}": exp(0.01 * (3 * k + n)) for n in (1, 2, 3)}, candidate=1.0)]
        for k in range(4)
    ]  # differences of 1, 2 ... 12 %
    found = gated(steps, 0.01)
    assert log(1 + found.change) == pytest.approx(0.065)
    assert (log(1 + found.low), log(1 + found.high)) == pytest.approx((0.02, 0.11))
    noisy = [[turns_of(base=50.0, candidate=50.0 + each)] * 3 for each in (3.0, -2.0, 2.5, -2.2)]
    assert gated(noisy, 0.01).verdict == CANNOT_TELL and gated(noisy, 0.01).detectable > 0.05
    few = gated([blocks] * 2, 0.01)
    assert few.verdict == CANNOT_TELL and few.high == few.detectable == inf, "six differences exclude nothing"
    apart = [[turns_of(base=50.0, base_2=51.0, candidate=50.0)] * 3]
    assert gated(apart, 0.01).noise == pytest.approx(0.02)


def test_looks_share_the_alarms():
    """A run tests after 5, 7, 10 and its last start. All tests together share 0.5 %."""
    assert looks(16) == [5, 7, 10, 16] and looks(6) == [5, 6] and looks(4) == [4]
    blocks = [[turns_of(base=50.0, candidate=51.0)]]
    assert [is_decided(gated(blocks * count, 0.01)) for count in (4, 5, 6)] == [False, True, False]
    assert is_decided(gated(blocks * 4, 0.01, most=4), most=4)
    once, often = gated(blocks * 4, 0.01, most=4), gated(blocks * 4, 0.01, comparisons=20)
    assert once.verdict == REGRESSION and often.verdict == CANNOT_TELL


def test_intervals_of_signed_ranks_are_those_of_a_table():
    """n = 10: P(sum <= 10) = 0.042 (Hollander and Wolfe, table A.4), so the 11th smallest average of 55."""
    values = [0.1 * each**2 for each in range(10)]
    averages = sorted((one + other) / 2 for place, one in enumerate(values) for other in values[place:])
    low, middle, high = signed_rank_interval(values, 0.0425)
    assert (low, high) == (averages[10], averages[-11]) and middle == pytest.approx(median(averages))
    assert signed_rank_interval(values, 0.0415)[0] == averages[9]


def test_a_wrong_candidate_is_a_regression_and_a_wrong_base_tells_nothing(derby, tmp_path):
    """Also with another interpreter, which has only this package from here; and with a comment and JSON."""
    root = copied_set(tmp_path)
    words = ("--root", root, "--device", "cpu", "--iterations", 2, "--most-starts", 4, "--workloads", "8")
    comment = tmp_path / "gate.md"
    code, out, err = derby(
        "gate", "honest", "raises", *words, "--candidate-python", sys.executable, "--json", "--comment", comment
    )
    told = json.loads(out)
    assert code == told["exit_code"] == 1 and "raised: ValueError" in told["workloads"][0]["failure"], err
    assert "**derby gate: regression**" in comment.read_text() and "the candidate: raised" in comment.read_text()
    assert derby("gate", "raises", "honest", *words)[0] == 2


CLAIMS_LESS = """
import time

import torch
from kernelderby.measure.clock import timing

spans = timing.WallTimer.spans


def shorter(self, *given, **named):
    found = spans(self, *given, **named)
    for times in (found.spans_us, found.host_us, found.wall_us):
        times[:] = [each / 1000 for each in times]
    return found


timing.WallTimer.spans = shorter


def run(x, y, factor, out):
    time.sleep(0.03)
    torch.add(x, y, alpha=factor, out=out)
"""


def test_a_candidate_whose_timer_the_judges_clock_contradicts_is_a_regression(derby, tmp_path, monkeypatch):
    """One batch of the judge's clock, of 32 calls; it takes up to 24 of a machine that is slow for a while."""
    monkeypatch.setattr("kernelderby.measure.judge.batch.BATCHES", 1)
    monkeypatch.setattr("kernelderby.measure.judge.doubt._PATIENCE", ())
    root = copied_set(tmp_path)
    (root / "solutions/tests/elementwise/scaled_add_n16/raises/main.py").write_text(CLAIMS_LESS)
    words = ("--root", root, "--device", "cpu", "--iterations", 2, "--most-starts", 4, "--workloads", "8", "--json")
    code, out, err = derby("gate", "honest", "raises", *words)
    assert code == 1 and "by the judge's clock" in json.loads(out)["workloads"][0]["failure"], out + err


def test_base_against_base_on_a_cpu(derby, tmp_path):
    """A CPU is a noisy machine; it may not be able to tell, but the numbers must be there."""
    root = copied_set(tmp_path)
    code, out, _ = derby(
        *("gate", "honest", "honest", "--root", root, "--device", "cpu", "--iterations", 2, "--most-starts", 4),
        *("--workloads", "8", "--json"),
    )
    [workload] = json.loads(out)["workloads"]
    assert workload["starts"] == 4 and workload["base_us"] > 0 and workload["detectable_percent"] > 1
    assert code == {NO_REGRESSION: 0, REGRESSION: 1, CANNOT_TELL: 2}[workload["verdict"]]


def test_a_candidate_that_can_no_longer_be_captured_is_told(derby, tmp_path, monkeypatch):
    """A CPU has no graphs: the base's are made up."""
    from kernelderby.measure.clock.graphs import NotCapturable
    from kernelderby.measure.judge.race import Race

    captured = []

    def capture(self):
        captured.append(self)
        if len(captured) % 2 == 0:  # base and candidate in turn
            raise NotCapturable("it allocates", spoiled=False)
        self.has_graph = True

    monkeypatch.setattr(Race, "capture", capture)
    words = ("--root", copied_set(tmp_path), "--device", "cpu", "--iterations", 2, "--most-starts", 4, "--json")
    _, out, _ = derby("gate", "honest", "honest", *words, "--workloads", "8")
    [workload] = json.loads(out)["workloads"]
    assert workload["time"] == "eager" and workload["base_us"] > 0
    assert workload["failure"] == "the candidate has no graph (it allocates), so eager times are compared"


OPENS = """
import torch

try:
    open({place!r}).close()
except PermissionError:
    pass
else:
    raise ValueError("it can lock the rows")


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
"""


@pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no landlock")
def test_a_former_version_cannot_open_the_rows_of_the_present_set(derby, tmp_path):
    root = copied_set(tmp_path)
    (root / "traces").mkdir()
    (root / "traces/rows.jsonl").write_text("")
    text = OPENS.format(place=str(root / "traces/rows.jsonl"))
    (root / "solutions/tests/elementwise/scaled_add_n16/raises/main.py").write_text(text)
    for words in ("init", "add .", "-c user.name=a -c user.email=b commit -m former"):
        subprocess.run(["git", "-C", str(root), *words.split()], check=True, capture_output=True)
    words = ("--root", root, "--device", "cpu", "--iterations", 2, "--most-starts", 4, "--workloads", "8", "--json")
    code, out, err = derby("gate", "honest", "raises@HEAD", *words)
    assert not json.loads(out)["workloads"][0]["failure"], out + err


def test_bad_words_are_one_line(derby, tmp_path):
    root = copied_set(tmp_path)
    for words, said in (
        (("honest", "nobody"), "no solution 'nobody'"),
        (("honest@main", "honest"), "a revision needs the set's repository"),
        (("honest", "honest", "--base-python", "/no/python"), "give the path of an interpreter"),
        (("honest", "honest", "--base-python", "/nowhere"), "give the path of an interpreter"),
        (("honest", "honest", "--comment", "/no/folder/gate.md"), "--comment: /no/folder: is no folder"),
        (("honest", "honest", "--base-python", "/bin/false"), "pip install 'kernelderby[measure]' there"),
    ):
        code, out, err = derby("gate", *words, "--device", "cpu", "--root", root)
        assert code == 1 and not out and said in err and err.count("\n") == 1, err


def test_a_workload_that_is_decided_stays_so_when_a_later_load_fails(tmp_path, monkeypatch):
    """The first is decided, the second fails, and for the third nothing loads any more."""
    from types import SimpleNamespace

    from measuring import CPU

    from kernelderby.measure.run import gate
    from kernelderby.measure.wire.replies import Failed
    from kernelderby.rows.measurement import Status

    out = gate._Out("candidate 1", Failed(Status.CRASHED, "it ended"))
    loads, measures = iter([None, out]), iter([("eager", []), out])

    def load(self):
        self._workers["candidate 1"] = SimpleNamespace(kill=lambda: None)
        if problem := next(loads):
            raise problem

    def measured(self, workload, start):
        if isinstance(found := next(measures), gate._Out):
            raise found
        return found

    monkeypatch.setattr(gate.Gate, "_load", load)
    monkeypatch.setattr(gate.Gate, "_measured", measured)
    monkeypatch.setattr(gate, "gated", lambda *_: SimpleNamespace(verdict=NO_REGRESSION))
    monkeypatch.setattr(gate, "is_decided", lambda *_: True)
    side = gate.Side("s", tmp_path, None)
    found = gate.Gate(None, side, side, CPU, gate.GateSettings()).run([SimpleNamespace(uuid=each) for each in "abc"])
    assert [each.verdict for each in found] == [NO_REGRESSION, REGRESSION, REGRESSION]


@pytest.mark.gpu
def test_base_against_base_on_a_gpu(derby, checkout):
    words = ("gate", "derby_rms_norm", "derby_rms_norm", "--root", checkout, "--workloads", "#3", "--json")
    code, out, _ = derby(*words)
    assert code in (0, 2), out
