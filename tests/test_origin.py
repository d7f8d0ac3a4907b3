"""Workloads of our own beside the survey's: they have tables of their own and change no score."""

import json

import pytest

import kernelderby
from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.run.plan import Settings, make_plan

D = "scale_rows_h4"
SERVING = "5e701f6e-0000-4000-8000-000000000007"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def survey_set(small_set):
    """The small set: its two workloads are the survey's, its rows of the present sources, the operator has a weight."""
    path, rows = workloads(small_set), traces(small_set)
    write(path, [line | {"origin": "survey"} for line in lines(path)])
    hashes = {name: solution.hash for name, solution in Catalog.open(small_set).solutions.items()}
    found = lines(rows)
    for row in found:
        row["measurement"]["solution_hash"] = hashes[row["solution"]]
    write(rows, found)
    (small_set / "profiles").mkdir()
    (small_set / "profiles/published_importance.csv").write_text(f"operator,importance_percent\n{D},30\nother,70\n")
    return small_set


def workloads(root):
    return root / f"workloads/toy/{D}.jsonl"


def traces(root):
    return root / f"traces/h200/toy/{D}.jsonl"


def add_serving(root, with_rows=True):
    """One workload of another origin, ten million rows, on which both solutions come near the floor."""
    one = lines(workloads(root))[1]
    one["workload"].update(uuid=SERVING, axes={"rows": 10_000_000})
    one["cost"] = {"flops": {"float32": 80_000_000}, "bytes_read": 200_000_000, "bytes_written": 160_000_000}
    write(workloads(root), [*lines(workloads(root)), one | {"origin": "serving"}])
    if with_rows:
        rows = [row for row in lines(traces(root)) if row["workload"]["axes"]["rows"] == 1000]
        for row in rows:
            row["workload"] = one["workload"]
            # the slower one of the survey's shapes is the faster one here
            latency_us = 80.0 if row["solution"] == "toy_baseline" else 160.0
            row["evaluation"]["performance"].update(latency_ms=latency_us / 1e3, speedup_factor=None)
            row["measurement"]["latency_us"] = latency_us
            row["measurement"]["samples_us"] = [[latency_us] * 5] * 3
        write(traces(root), [*lines(traces(root)), *rows])


def answers(derby, root, *more):
    """list, roofline and importance, as JSON."""
    found = []
    for words in (["list"], ["roofline", "--traces"], ["rank", "--importance"]):
        code, out, err = derby(*words, *more, "--json", "--root", root)
        assert (code, err) == (0, ""), err
        found.append(json.loads(out))
    return found


def without(data, *names):
    """The same data without these fields, at any depth."""
    if isinstance(data, dict):
        return {name: without(value, *names) for name, value in data.items() if name not in names}
    return [without(each, *names) for each in data] if isinstance(data, list) else data


def test_workloads_of_another_origin_change_no_score(derby, survey_set):
    before = answers(derby, survey_set)
    add_serving(survey_set)
    listed, roofline, importance = answers(derby, survey_set)
    # what counts rows, and what lies beside: nothing else moves
    aside = ("rows", "others", "other_shapes")
    assert [without(each, *aside) for each in (listed, roofline, importance)] == [
        without(each, *aside) for each in before
    ]
    assert listed["operators"][0]["other_shapes"] == {"serving": 1}
    (other,) = roofline["operators"][D]["others"]
    assert (other["uuid"], other["origin"], other["times"]["traces"]["solution"]) == (
        SERVING,
        "serving",
        "toy_baseline",
    )


def test_only_the_asked_origin_counts(derby, survey_set):
    add_serving(survey_set)
    listed, roofline, importance = answers(derby, survey_set, "--origin", "serving")
    share = 360e6 / 4.8e12 * 1e6 / 80  # 360 MB at 4.8 TB/s take 75 us
    assert listed["operators"][0]["best"]["h200"] == {"s": pytest.approx(share), "shapes": 1}
    assert listed["operators"][0]["shapes"] == 1 and listed["operators"][0]["other_shapes"] == {}
    operator = roofline["operators"][D]
    assert [shape["uuid"] for shape in operator["shapes"]] == [SERVING] and operator["others"] == []
    # the operator without serving workloads is not missing: it was not asked for
    assert roofline["weighted"]["traces"]["everywhere"] == pytest.approx(share)
    best = importance["importance"]["contenders"][0]
    assert (best["share"]["everywhere"], best["of_shapes"]) == (pytest.approx(share), 1)
    assert answers(derby, survey_set, "--origin", "survey,serving")[1]["operators"][D]["others"] != []


def test_each_origin_is_ranked_by_itself(derby, survey_set):
    add_serving(survey_set)
    survey, serving = kernelderby.open(survey_set).rank().value
    assert (survey.origin, survey.order, len(survey.rows)) == ("survey", ("toy_fast", "toy_baseline"), 2)
    assert (serving.origin, serving.order, len(serving.rows)) == ("serving", ("toy_baseline", "toy_fast"), 1)
    assert not any("has no more" in note for each in (survey, serving) for note in each.notes)
    code, out, err = derby("rank", "--root", survey_set)
    assert (code, err) == (0, "") and f"{D}, origin serving\n" in out
    (one,) = kernelderby.open(survey_set).rank(origin="serving").value
    assert (one.origin, one.order) == ("serving", serving.order)
    assert [row["origin"] for row in json.loads(derby("rank", "--json", "--root", survey_set)[1])["rankings"]] == [
        "survey",
        "serving",
    ]


def test_an_origin_without_rows_is_left_out_and_said_to_who_named_the_definition(derby, survey_set):
    add_serving(survey_set, with_rows=False)
    code, out, err = derby("rank", "--root", survey_set)
    assert (code, err) == (0, "") and "origin serving\n" not in out
    code, out, err = derby("rank", "--definitions", D, "--root", survey_set)
    assert code == 0 and "origin serving\n" not in out
    command = f"derby bench --definitions {D} --origin serving"
    assert err == f"derby: {D}: 1 shape has no row (origin serving); `{command}` measures them\n"
    code, out, err = derby("rank", "--origin", "serving", "--root", survey_set)
    assert code == 1 and "no row of" in err and err.count("\n") == 1


def test_tables_mark_what_does_not_count(derby, survey_set):
    add_serving(survey_set)
    assert " 2+1 " in derby("list", "--root", survey_set)[1]
    assert " 2+1 " in derby("roofline", "--root", survey_set)[1]
    shapes = derby("roofline", D, "--root", survey_set)[1]
    assert "and 1 of other origins, which do not count in S" in shapes
    assert sum("survey" in line for line in shapes.splitlines()) == 2
    assert sum("serving" in line for line in shapes.splitlines()) == 1
    assert "serving" in derby("show", D, "--root", survey_set)[1]
    assert "serving" not in derby("show", D, "--origin", "survey", "--root", survey_set)[1]


def test_a_definition_without_published_shapes_counts_all(derby, small_set):
    """A set of one's own has no survey."""
    first, *rest = lines(workloads(small_set))
    write(workloads(small_set), [first | {"origin": "mine"}, *rest])
    (operator,) = json.loads(derby("list", "--json", "--root", small_set)[1])["operators"]
    assert (operator["shapes"], operator["other_shapes"]) == (2, {})


@pytest.mark.parametrize(
    "words", [["list"], ["show", D], ["rank"], ["rank", "--importance"], ["roofline"], ["check", "--device", "cpu"]]
)
def test_an_unknown_origin_is_one_line(derby, survey_set, words):
    code, out, err = derby(*words, "--origin", "surwey", "--root", survey_set)
    assert code == 1 and out == "" and err.count("\n") == 1 and "--origin: " in err
    assert "did you mean survey" in err or words[0] == "check"


def test_a_plan_measures_only_the_asked_origin(survey_set):
    add_serving(survey_set, with_rows=False)
    catalog, machine = Catalog.open(survey_set), find_machine(survey_set, "cpu")
    plans = {
        origins: make_plan(catalog, machine, Settings(again=True), ["toy_fast"], origins=origins)
        for origins in ((), ("serving",), ("survey",))
    }
    uuids = {origins: [job.workload.uuid for job in plan.jobs] for origins, plan in plans.items()}
    assert uuids[("serving",)] == [SERVING] and len(uuids[("survey",)]) == 2 and len(uuids[()]) == 3
    with pytest.raises(kernelderby.DerbyError, match="--origin: no workload of the set has 'x'"):
        make_plan(catalog, machine, Settings(), origins=["x"])


def test_a_workload_without_cost_is_left_out_of_the_roofline_alone(derby, survey_set):
    one, two = lines(workloads(survey_set))
    del one["cost"]
    write(workloads(survey_set), [one, two])
    code, out, err = derby("roofline", "--traces", "--json", "--root", survey_set)
    (shape,) = json.loads(out)["operators"][D]["shapes"]
    assert code == 0 and shape["uuid"] == two["workload"]["uuid"]
    assert err.count("\n") == 1 and one["workload"]["uuid"] in err and "run derby pack; left out" in err


def test_an_operator_without_rows_of_its_published_shapes_is_ranked_by_the_others(derby, survey_set):
    add_serving(survey_set)
    write(traces(survey_set), [row for row in lines(traces(survey_set)) if row["workload"]["uuid"] == SERVING])
    for words in ([], [D]):
        code, out, err = derby("rank", *words, "--root", survey_set)
        assert code == 0 and f"{D}, origin serving" in out, err
    assert "2 shapes have no row" in err
