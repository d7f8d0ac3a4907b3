"""Recordings of an H200 that are kept: files of `derby profile run`, and the stages that two recorders saw."""

import csv
from collections import defaultdict

import pytest

from kernelderby.api.profile_file import open_profile_file
from kernelderby.catalog import Catalog
from kernelderby.page.recordings import recordings
from kernelderby.profile.pace import pace_of
from kernelderby.profile.stages.walk import BETWEEN, INVOCATION

H200 = ("profiles", "h200")
OWN, NEWER = "12.4", "13.0"  # nsys 2023.4.4's own CUPTI, and the one that was put in its place
CLOSE = 0.006
# Pairs that differ more, and why (docs/collecting.md): recorded half an hour apart, on two GPUs.
APART = {("cutlass_grouped", 56, NEWER): 0.019}
LOST = {"cutlass_grouped", "triton_fused_v2"}  # under its own CUPTI, from CUTLASS's grouped GEMM on


@pytest.mark.parametrize(
    ("solution", "kernels", "us"),
    [("deepgemm_grouped", 7, 316.2), ("derby_moe_sm90", 3, 267.5), ("triton_compact", 4, 285.4)],
)
def test_a_recording_is_twenty_whole_calls(checkout, solution, kernels, us):
    found = open_profile_file(checkout.joinpath(*H200, f"{solution}_recording_seq_len56.sqlite"))
    assert found.warnings == () and found.gpu == "NVIDIA H200" and found.profile.compute_capability == "9.0"
    pipeline = found.pipeline(solution, checkout)
    assert pipeline.invocations == 20 and pipeline.unattributed_ns == 0
    assert [row.instances for row in pipeline.stages if row.name != BETWEEN] == [20] * kernels
    assert pipeline.cost_ns / 20e3 == pytest.approx(us, abs=0.05)
    repetitions = pace_of(found.profile, INVOCATION).repetitions
    assert {each.operations for each in repetitions} == {kernels}
    assert pipeline.span_ns == sum(each.span_ns for each in repetitions)
    assert found.profile.unlinked_launches == 0


def recorded(checkout):
    """(solution, seq_len, nsys's CUPTI) -> its rows where both recorders ran."""
    lines = checkout.joinpath(*H200, "recorders.csv").read_text().splitlines()
    found = defaultdict(list)
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        if row["kernels cupti"] and row["kernels nsys"]:
            found[row["solution"], int(row["seq_len"]), row["nsys cupti"]].append(row)
    return found


def test_both_recorders_count_the_same_and_agree_in_time(checkout):
    """The pipeline's time: what its kernels add up to where overlap counts once, which a recorder that ends a kernel
    where the next one begins has right too."""
    compared = 0
    for pair, rows in recorded(checkout).items():
        solution, _, cupti = pair
        if solution in LOST and cupti == OWN:
            continue
        assert all(
            int(row["kernels cupti"]) * int(row["calls nsys"]) == int(row["kernels nsys"]) * int(row["calls cupti"])
            for row in rows
        ), pair
        cupti, nsys = (sum(float(row[f"added us {each}"]) for row in rows) for each in ("cupti", "nsys"))
        assert nsys == pytest.approx(cupti, rel=APART.get(pair, CLOSE)), pair
        compared += 1
    assert compared >= 17


def test_every_solution_is_there_at_every_size_under_cupti(checkout):
    lines = checkout.joinpath(*H200, "recorders.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    found = {(row["solution"], int(row["seq_len"])) for row in rows}
    solutions = {solution for solution, _ in found}
    assert len(solutions) == 6 and found == {(each, size) for each in solutions for size in (1, 56, 901, 14107)}
    assert all(row["kernels cupti"] for row in rows)


def test_where_nothing_overlaps_each_stage_agrees(checkout):
    """Stages over 10 us within 1.2 %; of the short ones a record's step of 32 ns is some percent."""
    compared = 0
    for (solution, *_), rows in recorded(checkout).items():
        if solution == "deepgemm_grouped":
            for row in rows:
                cupti, nsys = float(row["us cupti"]), float(row["us nsys"])
                assert nsys == pytest.approx(cupti, rel=0.012 if cupti > 10 else 0, abs=0.2 if cupti <= 10 else 0)
                compared += cupti > 10
    assert compared >= 12


def test_lost_kernels_are_seen_in_the_counts(checkout):
    seen = 0
    for pair, rows in recorded(checkout).items():
        solution, _, cupti = pair
        if solution in LOST and cupti == OWN:
            gemm = next(row for row in rows if row["stage"] == "K3")
            assert int(gemm["kernels cupti"]) == 20 and int(gemm["kernels nsys"]) == 0, pair
            assert sum(int(row["kernels nsys"]) for row in rows) == 13, pair
            seen += 1
    assert seen >= 6


def ends(checkout):
    """(operator, shape, solution) -> its rows of the profiles of the large and small ends, by stage."""
    lines = checkout.joinpath(*H200, "ends.csv").read_text().splitlines()
    found = defaultdict(dict)
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        found[row["definition"], row["shape"], row["solution"]][row["stage"]] = row
    return found


def test_the_stages_of_an_end_are_the_call(checkout):
    catalog = Catalog.open(checkout)
    for (operator, _, solution), stages in ends(checkout).items():
        assert catalog.solution(solution).definition == operator
        assert any(each.uuid.startswith(stages["call"]["workload"]) for each in catalog.workloads(operator))
        call = stages.pop("call")
        assert sum(float(row["kernels"]) for row in stages.values()) == float(call["kernels"])
        assert sum(float(row["us"]) for row in stages.values()) == pytest.approx(float(call["us"]), abs=0.03)
        assert float(call["span_us"]) >= float(call["us"])


def test_every_shape_has_ours_and_a_rival_and_the_pages_tables_are_those_of_the_file(checkout):
    found = ends(checkout)
    shapes = defaultdict(set)
    for operator, shape, solution in found:
        shapes[operator, shape].add(solution.startswith("derby_"))
    assert len(shapes) >= 9 and all(who == {True, False} for who in shapes.values())
    shown = {}
    for page in ("attention_sm90.md", "gemm_and_experts_sm90.md"):
        text = (checkout / "docs" / "lab" / page).read_text()
        table = text[text.index("<!-- ends ") : text.index("<!-- /ends -->")]
        for line in table.splitlines()[3:]:
            operator, shape, solution, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
            shown[operator, shape, solution] = numbers
    assert shown == {
        pair: [stages["call"]["kernels"], *(f"{float(stages['call'][name]):.4g}" for name in ("us", "span_us"))]
        for pair, stages in found.items()
    }


def test_the_page_has_nothing_to_say_of_what_is_kept(checkout):
    problems = []
    recordings(Catalog.open(checkout), [], problems.append)
    assert [line for line in problems if line.startswith("profiles/") or "/profiles/h200/" in line] == []
