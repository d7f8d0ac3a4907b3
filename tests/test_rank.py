"""Rankings whose numbers can be worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from rank_rows import D, ranked, row, rows, workload

import kernelderby
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.rank.order import order_dependences
from kernelderby.roofline.selection import definitions_with_rows
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.statistics.bootstrap import ResampledRows
from kernelderby.statistics.means import geometric_mean
from kernelderby.statistics.ratio import Ratio


def noted(ranking, words: str) -> bool:
    return any(words in note for note in ranking.notes)


def test_the_geometric_mean_may_be_weighted():
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1)
    assert geometric_mean([1.0, 8.0]) == pytest.approx(math.sqrt(8))
    assert geometric_mean([2.0, 16.0], weights=[2.0, 1.0]) == pytest.approx(4)


def test_numbers_worked_out_by_hand():
    """fast / steady: 20 / 40, 40 / 80, 400 / 300 us; ratios 2, 2, 0.75, geomean 3 ** (1/3); totals 460, 420 us."""
    result = ranked(rows(fast=[20.0, 40.0, 400.0], steady=[40.0, 80.0, 300.0]))
    fast, steady = result.summary("fast"), result.summary("steady")
    assert result.order == ("fast", "steady") and result.baseline == "fast"
    assert steady.geomean.value == pytest.approx(3 ** (1 / 3))
    assert (fast.total_us, steady.total_us) == pytest.approx((460, 420))
    assert steady.total_ratio == pytest.approx(420 / 460)
    assert (steady.wins, steady.ties, steady.losses, steady.win_rate) == (1, 0, 2, pytest.approx(1 / 3))
    assert (fast.fastest_on, steady.fastest_on) == (2, 1)
    assert (fast.passed, fast.workloads, fast.place, steady.place) == (3, 3, 1, 2)
    assert result.row("w1").cells["steady"].ratio.value == pytest.approx(2)
    assert result.row("w3").fastest == "steady" and result.row("w3").margin.value == pytest.approx(4 / 3)
    assert fast.share == pytest.approx(10 / 40)
    assert fast.share_total == pytest.approx(30 / 460)
    assert noted(result, "fast is first by geomean, steady by total time (0.913 of fast's)")


def test_named_baseline_turns_the_ratios_around_but_not_the_order():
    result = ranked(rows(fast=[20.0, 40.0, 400.0], steady=[40.0, 80.0, 300.0]), baseline="steady")
    fast = result.summary("fast")
    assert result.order == ("fast", "steady") and result.baseline == "steady"
    assert fast.geomean.value == pytest.approx(3 ** (-1 / 3))
    assert fast.geomean.low <= fast.geomean.value <= fast.geomean.high
    assert (fast.wins, fast.losses, fast.win_rate) == (2, 1, pytest.approx(2 / 3))
    assert fast.total_ratio == pytest.approx(460 / 420)


def test_rounds_that_drift_together_give_a_paired_interval_without_width():
    margin = ranked(rows(a=[100.0], b=[101.0]), 1).row("w1").margin
    assert margin.interval == "paired"
    assert (margin.low, margin.value, margin.high) == pytest.approx((1.01, 1.01, 1.01))
    assert margin.verdict == "slower"


def test_other_session_is_unpaired_and_drift_makes_a_tie():
    other = row("b", "w1", 101.0, session="two", samples_us=((99.0, 101.0, 103.0, 101.0),) * 3)
    first = row("a", "w1", 100.0, samples_us=((98.0, 100.0, 102.0, 100.0),) * 3)
    result = ranked([first, other], 1)
    assert result.row("w1").margin.interval == "unpaired"
    assert result.row("w1").margin.is_tie
    assert result.summary("a").fastest_on == 0 and result.summary("b").ties == 1
    assert noted(result, "unpaired") and noted(result, "a and b are tied")


def test_two_rounds_are_too_few_to_pair():
    pair = [row(name, "w1", value, samples_us=((value,) * 5,) * 2) for name, value in (("a", 1.0), ("b", 2.0))]
    assert ranked(pair, 1).row("w1").margin.interval == "unpaired"


def test_interval_of_few_rounds_is_about_student_s():
    """Log ratios -1, 0, 1 (x 0.01): Student's 95 % interval of their mean is 4.303 * 0.01 / sqrt(3)."""
    a = row("a", "w1", 1.0, samples_us=tuple((math.exp(0.01 * step),) for step in (-1, 0, 1)))
    b = row("b", "w1", 1.0, samples_us=((1.0,),) * 3)
    [ratio] = ResampledRows([a, b]).ratios(np.ones(2), np.array([0]), 1)
    assert math.log(ratio.high) == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=0.15)
    assert math.log(ratio.low) == pytest.approx(-math.log(ratio.high), rel=0.15)


@pytest.mark.parametrize("count", [15, 16])
def test_resampled_median_has_the_spread_of_a_real_bootstrap(count):
    samples = np.random.default_rng(0).normal(100, 3, size=count)
    a = row("a", "w1", float(np.median(samples)), session="x", samples_us=(tuple(samples),))
    b = row("b", "w1", 1.0, session="y", samples_us=((1.0,) * 5,))
    drawn = np.random.default_rng(1).choice(samples, size=(20000, count))
    expected = np.std(np.log(np.median(drawn, axis=1)))
    found = ResampledRows([a, b]).differences(np.array([0]), np.array([1]))
    assert np.std(found.values) == pytest.approx(expected, rel=0.1) and found.freedom == [count + 5 - 2]


def test_every_pair_of_a_small_field_and_those_that_count_of_a_large_one():
    small = ranked(rows(**{f"s{place:02}": [10.0 + place, 20.0] for place in range(11)}), 2)
    assert len(small.pairs) == 11 * 10 // 2
    large = ranked(rows(**{f"s{place:02}": [10.0 + place, 20.0] for place in range(60)}), 2, baseline="s30")
    assert len(large.pairs) < 4 * 60 and large.summary("s59").common == 2
    near = 128 // 60
    assert {(f"s{one:02}", f"s{two:02}") for one in range(60) for two in range(one + 1, min(one + near + 1, 60))} <= {
        (pair.first, pair.second) for pair in large.pairs
    }
    assert large.pair("s00", "s59") and large.pair("s30", "s59") and large.pair("s05", "s30")


def test_pairs_are_what_their_cells_say():
    """Ratios of pairs against the intervals that the cells have, some missing and some measured in other sessions."""
    generator = np.random.default_rng(3)
    measured = []
    for place in range(5):
        for index in (1, 2, 3):
            samples = tuple(tuple(generator.normal(10 + 0.02 * place, 0.05, 9)) for _ in range(4 + place % 2))
            measured.append(
                row(
                    f"s{place}",
                    f"w{index}",
                    float(np.median(np.concatenate(samples))),
                    samples_us=samples,
                    session="b" if (place, index) == (3, 2) else "a",
                )
            )
    result = ranked([each for each in measured if (each.solution, each.uuid) != ("s4", "w1")])
    for pair in result.pairs:
        if result.baseline not in (pair.first, pair.second):
            continue
        other = pair.second if pair.first == result.baseline else pair.first
        ratios = [each.cells[other].ratio for each in result.rows if each.cells[other].ratio]
        slower, faster = (sum(ratio.verdict == verdict for ratio in ratios) for verdict in ("slower", "faster"))
        wins, losses = (pair.wins, pair.losses) if pair.first == result.baseline else (pair.losses, pair.wins)
        assert (pair.workloads, wins, losses) == (len(ratios), slower, faster)
        assert {ratio.interval for ratio in ratios} == ({"paired", "unpaired"} if other == "s3" else {"paired"})


def test_ranking_is_linear_in_the_solutions():
    """Eight times the solutions take at most 32 times the time on a busy machine (64 if every one met every other)."""

    def seconds(count):
        generator = np.random.default_rng(count)
        drawn = [tuple(map(tuple, generator.normal(10, 1, (3, 5)))) for _ in range(count)]
        measured = [
            row(f"s{place:04}", f"w{index}", 10.0, samples_us=samples)
            for place, samples in enumerate(drawn)
            for index in (1, 2)
        ]
        start = time.process_time()
        ranked(measured, 2)
        return time.process_time() - start

    seconds(20)  # numpy's first use
    assert min(seconds(800) for _ in range(2)) < 32 * max(seconds(100) for _ in range(3))


def test_one_number_per_row_has_no_interval():
    result = ranked([row(name, "w1", value, samples_us=()) for name, value in (("a", 1.0), ("b", 2.0))], 1)
    assert result.row("w1").margin == Ratio(2.0) and result.row("w1").margin.verdict == "slower"
    assert result.summary("b").geomean.low is None
    assert noted(result, "no interval")


def test_same_rows_give_the_same_numbers_in_any_order():
    measured = rows(a=[10.0, 11.0, 12.0], b=[10.1, 10.9, 12.2])
    noisy = [
        replace(
            each,
            samples_us=tuple((s[0] + 0.1 * i, *s[1:]) for i, s in enumerate(each.samples_us)),
            session=each.solution,
        )
        for each in measured
    ]
    assert ranked(noisy) == ranked(noisy[::-1])


def test_equal_solutions_tie_and_are_ordered_by_name():
    result = ranked(rows(b=[10.0, 20.0, 30.0], a=[10.0, 20.0, 30.0]))
    assert result.order == ("a", "b")
    assert result.summary("b").ties == 3 and result.summary("b").win_rate == 0
    assert result.order_dependences == ()
    assert noted(result, "a and b are tied")


def test_one_outlier_decides_the_order():
    """a / b: 1.1 on three workloads, 0.5 on the fourth: without that one b is first."""
    result = ranked(rows(a=[11.0, 11.0, 11.0, 50.0], b=[10.0, 10.0, 10.0, 100.0]), 4)
    assert result.order == ("a", "b")
    assert [(each.first, each.second, each.workloads) for each in result.order_dependences] == [("a", "b", ("w4",))]
    assert noted(result, "the order of a and b depends on workload seq_len=4")


def test_order_of_solutions_that_did_not_pass_everything():
    times = {"whole": {"w1": 9.0, "w2": 9.0}, "half": {"w1": 1.0}, "none": {}}
    assert order_dependences(times, {"w1": 1.0, "w2": 1.0}, ("whole", "half", "none")) == ()
    result = ranked(rows(whole=[9.0, 9.0], half=[1.0, None], none=[None, None]), 2)
    assert result.order == ("whole", "half", "none")
    half, none = result.summary("half"), result.summary("none")
    assert (half.passed, half.failures, half.common) == (1, {"timed out": 1}, 1)
    assert half.geomean.value == pytest.approx(1 / 9) and half.total_ratio == pytest.approx(1 / 9)
    assert (none.place, none.passed, none.geomean) == (None, 0, None)
    assert result.row("w2").cells["half"].status == "timed out"
    assert noted(result, "half passed 1 of 2 workloads: 1 timed out")


def test_what_only_the_plain_baseline_ran_is_not_asked_of_the_others():
    plain = [8, 8, 8, 8]
    assert ranked(rows(plain=plain, mine=[1, 1]), 4).order == ("mine", "plain")
    assert ranked(rows(plain=plain, mine=[1, 1], other=[2, 2, 2]), 4).order == ("other", "plain", "mine")
    assert ranked(rows(plain=plain, mine=[1, 1, None]), 4).order == ("plain", "mine"), "a failure was raced"
    assert ranked(rows(plain=plain, mine=[1]), 4).order == ("mine", "plain")
    assert ranked(rows(plain=plain, mine=[1, 1], other=[2, 2, None]), 4).order == ("mine", "plain", "other")
    assert ranked(rows(plain=plain, mine=[1, 1]), 4).summaries[0].passed == 2


def test_a_judge_without_memory_is_no_failure_of_the_solution():
    no_memory = {"status": Status.OUT_OF_MEMORY, "message": "the judge has no memory for its case: 47 GiB"}
    measured = rows(plain=[8, 8], mine=[1])
    result = ranked([*measured, row("mine", "w2", None, **no_memory)], 2)
    assert result.order == ("mine", "plain") and result.row("w2").cells["mine"].status == "out of memory"
    own = row("mine", "w2", None, status=Status.OUT_OF_MEMORY, message="its workspace")
    assert ranked([*measured, own], 2).order == ("plain", "mine")


def test_failed_and_missing_rows_stay_in_the_table():
    measured = [row("a", "w1", 10.0), row("a", "w2", None, status=Status.WRONG_VALUES, message="ratio 0.4")]
    result = ranked(measured, 3, names=["a", "never"])
    statuses = [result.row(f"w{index}").cells["a"].status for index in (1, 2, 3)]
    assert statuses == ["passed", "wrong values", "not measured"]
    assert result.row("w2").cells["a"].message == "ratio 0.4"
    assert result.not_measured == ("never",) and result.summary("never").failures == {"not measured": 3}
    assert noted(result, "not measured on NVIDIA H200: never")


def test_a_race_that_nobody_passed_has_no_baseline():
    result = ranked(rows(a=[None, None, None]))
    assert result.baseline is None and result.order == ("a",) and result.summary("a").geomean is None


def test_one_gpu_and_one_protocol_only():
    other_gpu = [replace(each, gpu="NVIDIA B200", latency_us=1.0) for each in rows(b=[5.0])]
    events = [replace(each, protocol="cuda-events") for each in rows(a=[5.0, 5.0])]
    bench = [
        replace(each, protocol="flashinfer-bench-events", samples_us=()) for each in rows(a=[9.0] * 3, b=[1.0] * 3) * 3
    ]
    measured = rows(a=[10.0, 10.0, 10.0], b=[20.0, 20.0, 20.0]) + other_gpu + events + bench
    result = ranked(measured)
    assert (result.group.gpu, result.group.protocol, result.group.rows) == ("NVIDIA H200", "cupti", 6)
    assert [(each.gpu, each.protocol, each.rows) for each in result.other_groups] == [
        ("NVIDIA B200", "cupti", 1),
        ("NVIDIA H200", "cuda-events", 2),
        ("NVIDIA H200", "flashinfer-bench-events", 18),
    ]
    assert result.order == ("a", "b") and noted(result, "NVIDIA B200 under cupti (1 row)")
    assert ranked(measured, gpu="b200").group.gpu == "NVIDIA B200"
    assert ranked(measured, gpu="nvidia b200").order == ("b",)
    assert ranked(measured, protocol="flashinfer-bench-events").order == ("b", "a")
    assert ranked(measured, gpu="H200", protocol="cuda-events").order == ("a",)
    theirs = [replace(each, protocol="flashinfer-bench-cupti") for each in bench[:1]] + bench
    result = ranked(theirs)  # the newer of its timers, though it has fewer rows; never both
    assert (result.group.protocol, result.group.rows) == ("flashinfer-bench-cupti", 1)
    assert noted(result, "flashinfer-bench's CUPTI takes the span of the kernels")
    with pytest.raises(DerbyError, match="did you mean flashinfer-bench-"):
        ranked(theirs, protocol="flashinfer-bench")
    with pytest.raises(DerbyError, match="no row was measured on 'b100'; did you mean b200"):
        ranked(measured, gpu="b100")
    with pytest.raises(DerbyError, match="--protocol: no row of GPU b200 .* 'cuda-events'; known: cupti"):
        ranked(measured, gpu="b200", protocol="cuda-events")


def test_newest_row_counts():
    measured = [
        row("a", "w1", 10.0, timestamp="2026-11-21T09:00:00+09:00"),  # midnight UTC
        row("a", "w1", 20.0, timestamp="2026-11-21T01:00:00"),
        row("a", "w1", 30.0, timestamp="2026-11-20T23:00:00Z"),
    ]
    assert ranked(measured, 1).row("w1").cells["a"].latency_us == 20.0


def test_outdated_rows_are_marked_and_give_way_to_present_ones():
    old = row("a", "w1", 5.0, solution_hash="gone", timestamp="2026-12-01T00:00:00Z")
    result = ranked([old], 1)
    assert result.row("w1").cells["a"].outdated and result.summary("a").outdated == 1
    assert noted(result, "outdated") and noted(result, "a (1)")
    present = ranked([old, row("a", "w1", 7.0)], 1)
    assert present.row("w1").cells["a"].latency_us == 7.0 and not present.row("w1").cells["a"].outdated


def test_rows_of_unknown_solutions_and_workloads_are_left_out_and_said():
    result = ranked([*rows(a=[1.0], gone=[0.5]), row("a", "w9", 1.0)], 1, names=["a"])
    assert result.order == ("a",) and set(result.row("w1").cells) == {"a"}
    assert noted(result, "no longer in the set: gone (1 row)") and noted(result, "1 row of workloads")


def test_only_narrows_the_solutions():
    result = ranked(rows(a=[1.0], b=[2.0], c=[3.0]), 1, only={"b", "c"})
    assert result.order == ("b", "c") and result.baseline == "b" and not noted(result, "no longer in the set")


def test_too_good_to_be_true():
    result = ranked(rows(a=[9.1, 8.9]), 2)
    assert [result.row(uuid).cells["a"].too_good for uuid in ("w1", "w2")] == [False, True]
    assert noted(result, "suspicious: a on seq_len=2")


def test_unknown_gpu_has_no_floor_and_says_why():
    result = ranked([replace(each, gpu="Imaginary 9000") for each in rows(a=[10.0, 20.0, 30.0])])
    assert result.group.gpu == "Imaginary 9000" and result.row("w1").floor_us is None
    assert result.summary("a").share is None and noted(result, "S is n/a: the peaks of Imaginary 9000")


def test_workload_without_cost_has_no_floor():
    without = dataclasses.replace(workload("w2"), cost=None)
    result = ranked(rows(a=[20.0, 40.0]), [workload("w1"), without])
    assert result.row("w2").floor_us is None and result.summary("a").share_total == pytest.approx(0.5)
    assert noted(result, "1 of 2 workloads carry no cost")


def test_importance_weighs_the_geomean():
    """Ratios 2 with weight 2 and 16 with weight 1: (2 * 2 * 16) ** (1/3) = 4."""
    weighted = [workload("w1", importance=2), workload("w2")]
    result = ranked(rows(a=[1.0, 1.0], b=[2.0, 16.0]), weighted)
    assert result.is_weighted and result.summary("b").geomean.value == pytest.approx(4)
    with pytest.raises(DerbyError, match="w1: importance: 0 is no positive number"):
        ranked(rows(a=[1.0]), [workload("w1", importance=0)])


def test_flashinfer_bench_s_own_lines():
    lines = [
        {
            "definition": D,
            "workload": {"uuid": "w1", "axes": {}, "inputs": {}},
            "solution": solution,
            "evaluation": {
                "status": status,
                "environment": {"hardware": "NVIDIA H200", "libs": {"torch": "2.9"}},
                "timestamp": "2026-11-20T10:00:00.123456",
                "log": "",
                "correctness": {"max_relative_error": 0.1, "max_absolute_error": 0.2} if performance else None,
                "performance": performance,
            },
        }
        for solution, status, performance in (
            ("a", "PASSED", {"latency_ms": 0.05, "reference_latency_ms": 1.0, "speedup_factor": 20.0}),
            ("b", "RUNTIME_ERROR", None),
        )
    ]
    result = ranked([Measurement.from_trace(json.loads(json.dumps(line))) for line in lines], 1)
    assert result.group.protocol == "flashinfer-bench-events"
    assert result.row("w1").cells["a"].latency_us == pytest.approx(50)
    assert result.row("w1").cells["b"].status == "raised"
    assert not result.row("w1").cells["a"].outdated and noted(result, "without a source hash")


@pytest.mark.parametrize(
    "broken, words",
    [
        ({"latency_us": 0.0}, "latency_us: a passed row needs a positive time"),
        ({"samples_us": ((1.0, -1.0),)}, "samples_us: a round is empty or holds"),
    ],
)
def test_impossible_times_are_errors(broken, words):
    with pytest.raises(DerbyError, match=words):
        ranked([replace(row("a", "w1", 1.0), **broken)], 1)


def test_no_rows_and_a_baseline_without_passes_are_errors():
    with pytest.raises(DerbyError, match="no row of operator"):
        ranked([], names=["a"])
    with pytest.raises(DerbyError, match="--baseline: b passed no workload on NVIDIA H200 .* did: a"):
        ranked(rows(a=[1.0], b=[None]), 1, baseline="b")


def test_command_on_a_small_set(derby, small_set: Path):
    code, output, _ = derby("rank", "--root", small_set, "--json")
    (result,) = json.loads(output)["rankings"]
    assert code == 0 and result["definition"] == "scale_rows_h4" and len(result["rows"]) == 2
    assert result["summaries"][0]["workloads"] == 2
    code, output, _ = derby("rank", "--root", small_set)
    assert code == 0 and output.startswith("scale_rows_h4\n") and "toy_fast" in output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gpu", "h20"], "did you mean"),
        (["--definition", "scale_rows_h5"], "no operator 'scale_rows_h5'; did you mean scale_rows_h4"),
        (["--solutions", "toy_fst"], "no solution 'toy_fst'; did you mean toy_fast"),
        (["--protocol", "sundial"], "no row was measured with 'sundial'"),
        (["--write", "missing.md"], "missing.md: cannot be read"),
    ],
)
def test_command_errors_are_one_line(derby, small_set: Path, arguments, words):
    code, output, error = derby("rank", "--root", small_set, *arguments)
    assert code == 1 and output == "" and words in error and error.count("\n") == 1


def test_command_writes_a_block_of_a_markdown_file(derby, small_set: Path, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n<!-- derby rank -->\nformer text\n<!-- /derby -->\nend\n")
    assert derby("rank", "--root", small_set, "--write", page)[0] == 0
    text = page.read_text()
    assert text.startswith("# Title\n<!-- derby rank -->\n") and text.endswith("<!-- /derby -->\nend\n")
    assert "| toy_fast |" in text.replace("**", "") and "former text" not in text
    derby("rank", "--root", small_set, "--write", page)
    assert page.read_text() == text


def test_definitions_with_rows_of_a_gpu():
    measured = [*rows(a=[1.0]), replace(row("b", "w1", 1.0), definition="other", gpu="NVIDIA B200")]
    assert definitions_with_rows(measured, None, None) == {D, "other"}
    assert definitions_with_rows(measured, "b200", None) == {"other"}
    with pytest.raises(DerbyError, match="--gpu"):
        definitions_with_rows(measured, "h20", None)


def test_command_ranks_what_solutions_competed_for(derby, checkout: Path):
    """Operators that one solution alone has rows of are left out, and a line says so."""
    code, output, error = derby("rank", "--root", checkout, "--gpu", "h100", "--json")
    rankings = json.loads(output)["rankings"]
    assert code == 0 and rankings and all(len(ranking["order"]) > 1 for ranking in rankings)
    alone = len({row.definition for row in Catalog.open(checkout).traces()} - {each["definition"] for each in rankings})
    assert f"derby: {alone} operators have no rows of two solutions, left out" in error
    named = ("--definition", "rms_norm", "--solutions", "rms_norm_baseline")
    one, *_ = json.loads(derby("rank", "--root", checkout, *named, "--json")[1])["rankings"]
    assert one["order"] == ["rms_norm_baseline"]


def test_command_without_names_has_a_row_a_race(derby, checkout: Path):
    code, output, _ = derby("rank", "--root", checkout, columns=80)
    rankings = kernelderby.open(checkout).rank().value
    assert code == 0 and f"{len(rankings)} races\n" in output and len(output.splitlines()) < len(rankings) + 20
    assert max(map(len, output.splitlines())) <= 80
    for ranking in rankings:
        assert re.search(rf"^{ranking.definition[:9]}.* {ranking.order[0][:9]}.* \d", output, re.MULTILINE)
    markdown = derby("rank", "--root", checkout, "--format", "markdown")[1]
    [row] = [line for line in markdown.splitlines() if line.startswith("| rms_norm |")]
    [race] = [each for each in rankings if (each.definition, each.origin) == ("rms_norm", "survey")]
    assert f"| {race.order[0]}" in row and f"| {race.lead.ratio.value:.2f} | vllm of " in row
    every = derby("rank", "--root", checkout, "--shapes")[1]
    assert every.count("Each workload: ") == len(rankings) and "Each workload: " not in output
    assert "Each workload: " in derby("rank", "rms_norm", "l2_norm", "topk_filter", "mrope", "--root", checkout)[1]


def test_command_without_traces(derby, small_set: Path):
    for path in (small_set / "traces").rglob("*.jsonl"):
        path.unlink()
    code, _, error = derby("rank", "--root", small_set)
    assert code == 1 and "no recorded rows; measure with `derby bench`" in error


def test_a_race_as_a_picture(derby, small_set: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "race.png"
    code, output, err = derby("rank", "--plot", picture, "--root", small_set)
    assert code == 0 and "toy_fast" in output and f"{picture}: written" in err
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert derby("rank", "--summary", "sentence", "--plot", picture, "--root", small_set)[0] != 0


def test_a_picture_holds_one_race(derby, checkout: Path, tmp_path: Path):
    code, _, err = derby("rank", "--plot", tmp_path / "race.png", "--root", checkout)
    assert code == 1 and "a picture holds one race" in err and not (tmp_path / "race.png").exists()


def test_of_gpus_with_as_many_rows_the_one_with_more_in_all_is_ranked():
    here, there = rows(a=[1.0, 2.0]), [replace(each, gpu="NVIDIA H100") for each in rows(a=[1.0, 2.0])]
    older = [replace(each, protocol="cupti-span-1") for each in here]
    newest = [replace(each, protocol="cupti-2") for each in here + there]
    assert ranked(newest + older).group.gpu == "NVIDIA H200"
