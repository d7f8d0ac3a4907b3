"""derby gate: its error rates on a simulated machine, its formulas by hand, and whole runs on a CPU."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from measuring import copied_set

from kernelderby.statistics import student
from kernelderby.statistics.gate import CANNOT_TELL, NO_REGRESSION, REGRESSION, differences, gated


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
    same = simulated(0.0, 400)
    assert same.count(REGRESSION) <= 4 and same.count(NO_REGRESSION) >= 380
    assert simulated(0.02, 400).count(REGRESSION) >= 380
    assert simulated(-0.02, 100).count(NO_REGRESSION) == 100


def test_a_machine_of_recorded_rounds(rates, checkout):
    """The rounds of a row back and forth, wider by what its own median hides."""
    steady, moving = [each for _, each in rates.recorded(checkout, "NVIDIA H200")][-2:]
    assert steady.rounds == moving.rounds and len(steady.rounds) > 100 and not steady.offsets
    assert 0.0005 < median(map(abs, moving.offsets)) < 0.01
    assert rates._rounds([[1.0, 2.0, 1.0], [1.0], [1.0], [exp(0.03)]]) == pytest.approx([0, 0, 0, 0.03 * sqrt(4 / 3)])
    assert rates._rounds([[1.0]] * 3) == []
    offset, block = rates.Recorded([[0.0, 1.0, 2.0, 3.0]], [0.25])(np.random.default_rng(1))
    turns = block()
    assert offset() == 0.25 and len(turns) == 6
    assert {abs(one - other) for one, other in pairwise(turns)} == {1.0}


def test_differences_by_hand():
    """A drift that is linear over a block leaves all three alike; an outlier of one block moves no median."""
    drifting = [50 * exp(0.01 * place) for place in range(6)]
    assert differences([drifting] * 3) == pytest.approx((0.0, 0.0))
    slower = [50.0, 51.0, 50.0, 50.0, 51.0, 50.0]
    with_outlier = [50.0, 90.0, 50.0, 50.0, 51.0, 50.0]
    assert differences([slower, with_outlier, slower]) == pytest.approx((log(1.02), 0.0))


def test_verdicts_by_hand():
    """Four equal starts: the noise is the least that is assumed, 0.02 % of a start, 0.01 % of four."""
    blocks = [[50.0, 51.0, 50.0, 50.0, 51.0, 50.0]] * 3
    found = gated([blocks] * 4, 0.01, most=4)
    assert found.verdict == REGRESSION and found.change == pytest.approx(0.02) and found.starts == 4
    quantile = student.upper_quantile(0.005, 7)
    assert quantile == pytest.approx(3.499, abs=0.01)  # any table of Student's distribution
    assert log(1 + found.high) - log(1.02) == pytest.approx(quantile * 1e-4)
    assert gated([blocks] * 4, 0.03).verdict == NO_REGRESSION  # it does not count
    noisy = [[[50.0, 50.0 + each, 50.0, 50.0, 50.0 + each, 50.0]] * 3 for each in (3.0, -2.0, 2.5, -2.2)]
    assert gated(noisy, 0.01).verdict == CANNOT_TELL and gated(noisy, 0.01).detectable > 0.05
    once, often = gated([blocks] * 4, 0.01, most=4), gated([blocks] * 4, 0.01, 20, 10)
    assert often.band > once.band  # the alarms of all looks and workloads together are bounded


@pytest.mark.parametrize(("freedom", "tail", "known"), [(7, 0.005, 3.499), (9, 0.001, 4.297), (19, 0.0005, 3.883)])
def test_quantiles_of_a_table(freedom, tail, known):
    assert student.upper_quantile(tail, freedom) == pytest.approx(known, rel=0.005)


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


def test_bad_words_are_one_line(derby, tmp_path):
    root = copied_set(tmp_path)
    for words, said in (
        (("honest", "nobody"), "no solution 'nobody'"),
        (("honest@main", "honest"), "a revision needs the set's repository"),
        (("honest", "honest", "--base-python", "/no/python"), "give the path of an interpreter"),
        (("honest", "honest", "--base-python", "/bin/false"), "pip install 'kernelderby[measure]' there"),
    ):
        code, out, err = derby("gate", *words, "--device", "cpu", "--root", root)
        assert code == 1 and not out and said in err and err.count("\n") == 1, err


@pytest.mark.gpu
def test_base_against_base_on_a_gpu(derby, checkout):
    words = ("gate", "derby_rms_norm", "derby_rms_norm", "--root", checkout, "--workloads", "#3", "--json")
    code, out, _ = derby(*words)
    assert code in (0, 2), out
