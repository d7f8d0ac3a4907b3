"""The operator survey's printed tables come out of our own costs, the published times and the peaks of the GPUs."""

from __future__ import annotations

import csv

import pytest

from kernelderby.catalog import Catalog, published
from kernelderby.hardware import find_gpu
from kernelderby.roofline.floors import OperatorShare, weighted_share
from kernelderby.roofline.operators import PUBLISHED, survey

NEAR = 0.97  # of the figures must be the printed ones
COST = 0.01  # how far a counted cost may be off the published one: tests/definitions/test_published_costs.py
# Operators for which the published work of the middle shape differs from our cost: docs/operators.md.
OTHER_WORK = {"paged_attention_decode"}
# How far S of an operator is off in percentage points: the first for that reason, the other by the draw of its routing.
MEDIANS_OFF = {"paged_attention_decode": 1.3, "fused_moe": 0.3}


def rows(root, name):
    with (root / "profiles" / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.fixture(scope="module")
def tables(checkout):
    """The survey of every operator of the checkout that was published, on the two GPUs of the document."""
    found = survey(Catalog.open(checkout), [find_gpu("h20"), find_gpu("xpu-a")])
    return found, [operator for operator in found.operators if operator.importance is not None]


@pytest.fixture(scope="module")
def printed_shapes(checkout):
    return {(row["operator"], int(row["shape_id"])): row for row in rows(checkout, "published_shapes.csv")}


@pytest.fixture(scope="module")
def printed_operators(checkout):
    return {row["operator"]: row for row in rows(checkout, "published_operators.csv")}


def test_the_published_files_speak_of_the_same_operators(checkout, printed_shapes, printed_operators):
    importance = published.importance(checkout, pytest.fail)
    assert set(importance) == set(printed_operators) == {operator for operator, _ in printed_shapes}
    assert len(importance) == 30 and len(printed_shapes) == len(published.times_us(checkout, pytest.fail)) == 440
    assert sum(importance.values()) == pytest.approx(109.6)


def test_every_published_shape_is_in_the_tables(tables, printed_shapes):
    _, operators = tables
    assert {(operator.name, shape.shape_id) for operator in operators for shape in operator.shapes} == set(
        printed_shapes
    )


def test_printed_shares_come_out(tables, printed_shapes):
    """S of a shape with one digit, as it is printed, within 0.1 percentage points."""
    _, operators = tables
    off = {
        (operator.name, shape.shape_id): 100 * shape.times[PUBLISHED].share
        for operator in operators
        for shape in operator.shapes
        if abs(round(100 * shape.times[PUBLISHED].share, 1) - printed_share(printed_shapes, operator, shape))
        > 0.1 + 1e-9
    }
    total = sum(len(operator.shapes) for operator in operators)
    assert len(off) <= (1 - NEAR) * total, off


def test_the_rest_is_how_the_survey_rounds(checkout, tables, printed_shapes):
    """Where our cost is the published one, S is the printed figure to the last digit, once T_SOL is rounded to 0.01 us
    and T to 0.1 us before the division."""
    catalog, (_, operators) = Catalog.open(checkout), tables
    cost = {workload.uuid: workload.cost for operator in operators for workload in catalog.workloads(operator.name)}
    exact = 0
    for operator in operators:
        for shape in operator.shapes:
            row, ours = printed_shapes[operator.name, shape.shape_id], cost[shape.uuid]
            if (sum(ours.flops.values()), ours.bytes_read, ours.bytes_written) != tuple(
                int(row[field]) for field in ("flops", "bytes_read", "bytes_written")
            ):
                continue
            timed = shape.times[PUBLISHED]
            rounded = round(timed.share * timed.latency_us, 2) / round(timed.latency_us, 1)
            assert round(100 * rounded, 1) == float(row["share_percent"]), (operator.name, shape.shape_id)
            exact += 1
    assert exact >= 400


def printed_share(printed_shapes, operator, shape):
    return float(printed_shapes[operator.name, shape.shape_id]["share_percent"])


def figure(text):
    """A printed figure and half of its last digit: "3.43 ms" -> (3430, 5) us; "15.4k" -> (15400, 50)."""
    number, _, unit = text.partition(" ")
    scale = 1000.0 if unit == "ms" or number.endswith("k") else 1.0
    number = number.removesuffix("k")
    return float(number) * scale, 0.5 * 10.0 ** -len(number.partition(".")[2]) * scale


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3.43 ms", (3430, 5)), ("15.4k", (15400, 50)), ("118 us", (118, 0.5)), ("0.00 us", (0, 0.005))],
)
def test_reading_a_printed_figure(text, expected):
    assert figure(text) == pytest.approx(expected)


def test_printed_operator_rows_come_out(tables, printed_operators):
    """Regime, flop per byte, T_SOL on both GPUs and T_prod of the middle shape; of OTHER_WORK regime and T_prod."""
    _, operators = tables
    fields, exact = 0, 0
    for operator in operators:
        row, middle = printed_operators[operator.name], operator.middle
        assert operator.regime == row["regime"], operator.name
        ours = {"tprod_xpua": middle.times[PUBLISHED].latency_us}
        if operator.name not in OTHER_WORK:
            ours |= {
                "flops_per_byte": middle.flops_per_byte,
                "tsol_h20": middle.floors["h20"].floor_us,
                "tsol_xpua": middle.floors["xpu-a"].floor_us,
            }
        for field, value in ours.items():
            printed, half = figure(row[field])
            fields, exact = fields + 1, exact + (abs(value - printed) <= half * (1 + 1e-9))
            assert value == pytest.approx(printed, rel=COST, abs=half * (1 + COST)), (operator.name, field, value)
    assert exact >= NEAR * fields and fields >= 4 * len(operators) - 3 * len(OTHER_WORK)


def test_printed_medians_come_out(tables, printed_operators):
    _, operators = tables
    for operator in operators:
        assert 100 * operator.shares[PUBLISHED].measured == pytest.approx(
            float(printed_operators[operator.name]["share_percent"]), abs=MEDIANS_OFF.get(operator.name, 0.11)
        ), operator.name


def test_the_importance_weighted_share_is_the_printed_one(checkout, tables, printed_operators):
    """13.1 % from the printed medians, 13.0 % from our own: MEDIANS_OFF."""
    printed = {name: float(row["share_percent"]) / 100 for name, row in printed_operators.items()}
    shares = {name: OperatorShare(share, share, 1, 1) for name, share in printed.items()}
    assert round(100 * weighted_share(shares, published.importance(checkout, pytest.fail)).measured, 1) == 13.1
    found, _ = tables
    weighted = found.weighted[PUBLISHED]
    assert (weighted.operators, weighted.of_operators, weighted.weight) == (30, 30, pytest.approx(1))
    assert round(100 * weighted.measured, 1) == round(100 * weighted.everywhere, 1) == 13.0
