"""Legs of one claim: published shapes, shapes of servers, of models, fresh ones. None mixes with another."""

import json

import pytest
from test_origin import D, add_serving, lines, survey_set, traces, workloads, write  # noqa: F401 - a fixture

import kernelderby
from kernelderby.catalog import Catalog
from kernelderby.page.build import page_of

FRESH = "f4e50000-0000-5000-8000-000000000001"
BOB = "bob"


def of_models(root, with_rows):
    add_serving(root, with_rows)
    write(
        workloads(root),
        [line | ({"origin": "models"} if line["origin"] == "serving" else {}) for line in lines(workloads(root))],
    )


def add_fresh(root, times, count=3):
    """Rows of shapes that no file holds. times: solution -> us."""
    one = next(row for row in lines(traces(root)) if row["workload"]["axes"]["rows"] == 1000)
    found = []
    for number in range(count):
        for name, latency_us in times.items():
            row = json.loads(json.dumps(next(each for each in lines(traces(root)) if each["solution"] == name)))
            row["workload"] = one["workload"] | {"uuid": f"{FRESH[:-1]}{number}", "axes": {"rows": 5000 + number}}
            row["evaluation"]["performance"].update(latency_ms=latency_us / 1e3, speedup_factor=None)
            row["measurement"].update(
                latency_us=latency_us,
                samples_us=[[latency_us, latency_us * 1.001, latency_us * 0.999, latency_us, latency_us]] * 3,
                session="2026-11-23T08:00:00+00:00-abcdef",
                shape={"origin": "fresh", "cost": {"flops": {"float32": 20000}, "bytes_read": 80, "bytes_written": 80}},
            )
            found.append(row)
    write(traces(root), [*lines(traces(root)), *found])


@pytest.fixture
def three(survey_set):  # noqa: F811
    """toy_fast is a library's here, toy_baseline ours: both stand in the small set under authors of their own."""
    return survey_set


def test_fresh_shapes_are_ranked_by_themselves_and_count_in_no_score(derby, three):
    before = [derby(*words, "--json", "--root", three)[1] for words in (["list"], ["roofline", "--traces"])]
    add_fresh(three, {"toy_fast": 50.0, "toy_baseline": 60.0})
    survey, fresh = kernelderby.open(three).rank().value
    assert (survey.origin, len(survey.rows)) == ("survey", 2)
    assert (fresh.origin, len(fresh.rows), fresh.order) == ("fresh", 3, ("toy_fast", "toy_baseline"))
    assert not any("has no more" in note for each in (survey, fresh) for note in each.notes)
    assert fresh.rows[0].floor_us is not None  # by the cost that the row tells
    code, out, _ = derby("rank", "--root", three)
    assert code == 0 and f"{D}, origin fresh" in out and "worst vs" in out and "5000" in out
    (one,) = kernelderby.open(three).rank(origin="fresh").value
    assert one.rows == fresh.rows
    after = [json.loads(derby(*words, "--json", "--root", three)[1]) for words in (["list"], ["roofline", "--traces"])]
    for old, new in zip(map(json.loads, before), after, strict=True):
        assert without_counts(old) == without_counts(new)
    races = page_of(Catalog.open(three)).model.races
    assert [(race.origin, race.is_default) for race in races] == [("survey", True), ("fresh", True)]


def without_counts(data):
    if isinstance(data, dict):
        return {name: without_counts(value) for name, value in data.items() if name not in ("rows", "seconds")}
    return [without_counts(each) for each in data] if isinstance(data, list) else data


def test_a_lead_that_is_another_one_on_fresh_shapes_is_said(three):
    add_fresh(three, {"toy_fast": 60.0, "toy_baseline": 50.0})
    survey, fresh = kernelderby.open(three).rank().value
    (note,) = [each for each in fresh.notes if "the lead is another one" in each]
    assert note.startswith("the lead is another one than on the listed shapes: toy_fast is 0.833 ")
    assert not any("the lead is another one" in each for each in survey.notes)


def test_the_same_lead_is_not_said(three):
    pair = kernelderby.open(three).rank().value[0].pair("toy_fast", "toy_baseline")
    add_fresh(three, {"toy_fast": 50.0, "toy_baseline": 50.0 * pair.geomean.value})
    fresh = kernelderby.open(three).rank().value[1]
    assert not any("the lead is another one" in each for each in fresh.notes)


def test_a_broken_shape_is_named_with_its_line(derby, three):
    add_fresh(three, {"toy_fast": 50.0, "toy_baseline": 60.0}, count=1)
    rows = lines(traces(three))
    for row in rows:
        if "shape" in row["measurement"]:
            row["measurement"]["shape"]["cost"] = {"flops": "many"}
    write(traces(three), rows)
    code, _, err = derby("rank", "--root", three)
    assert code == 0 and "measurement.shape: cost" in err and "left out" in err and ".jsonl:" in err


def summary(derby, root, *words):
    code, out, err = derby("rank", "--summary", "sentence", *words, "--root", root, columns=1000)
    assert code == 0, err
    return out


@pytest.fixture
def two_libraries(three):
    """The solutions are of two libraries, so that one can lead."""
    for path in (three / "solutions").rglob("*.json"):
        data = json.loads(path.read_text())
        if data["name"] == "toy_baseline":
            folder = path.parents[3] / BOB / path.parent.relative_to(path.parents[2])
            folder.mkdir(parents=True)
            (folder / path.name).write_text(json.dumps(data | {"author": BOB}))
            path.unlink()
    for folder in [each for each in (three / "solutions").rglob("toy_baseline") if each.is_dir()]:
        import shutil

        shutil.rmtree(folder)
    assert Catalog.open(three).solution("toy_baseline").author == BOB
    return three


def test_each_leg_has_a_sentence(derby, two_libraries):
    root = two_libraries
    assert "models" not in summary(derby, root) and "resh" not in summary(derby, root)
    of_models(root, with_rows=False)
    out = summary(derby, root)
    assert "Shapes of models: not measured yet." in out and "resh shapes" not in out
    add_fresh(root, {"toy_fast": 50.0, "toy_baseline": 60.0})
    out = summary(derby, root)
    survey, fresh, versions, models = out.strip().splitlines()[1:]
    assert versions.startswith("Oldest versions of the libraries: ")
    assert survey.startswith("Published shapes: ") and models == "Shapes of models: not measured yet."
    assert fresh.startswith("Fresh shapes: ") and "faster on 3 of 3 shapes" in fresh
    assert "1.20 times as fast" in fresh
    data = json.loads(derby("rank", "--summary", "operators", "--json", "--root", root)[1])
    assert [each["origin"] for each in data["leads"]] == ["", "fresh"]
    (only,) = json.loads(derby("rank", "--summary", "operators", "--origin", "fresh", "--json", "--root", root)[1])[
        "leads"
    ]
    assert only == data["leads"][1]


def test_shapes_of_servers_are_no_published_ones(derby, two_libraries):
    before = summary(derby, two_libraries).splitlines()
    add_serving(two_libraries, True)
    after = summary(derby, two_libraries).splitlines()
    assert after[:2] == before[:2] and "Shapes of servers: " in after[2] and "slower on 1." in after[2]


def test_a_gpu_by_name_has_one_author_on_all_legs(derby, two_libraries):
    of_models(two_libraries, with_rows=True)
    gpu = Catalog.open(two_libraries).traces()[0].gpu.lower()
    one = json.loads(derby("rank", "--summary", "operators", "--gpu", gpu, "--json", "--root", two_libraries)[1])
    other = json.loads(derby("rank", "--summary", "operators", "--json", "--root", two_libraries)[1])
    assert one["leads"] == other["leads"] and len(one["leads"]) == 2


def test_one_kind_of_time(derby, two_libraries):
    words = ("rank", "--summary", "operators", "--json", "--root", two_libraries)
    (both,) = json.loads(derby(*words)[1])["leads"]
    (eager,) = json.loads(derby(*words, "--time", "eager")[1])["leads"]
    assert eager["total"] == {"eager": both["total"]["eager"]}
    assert "leave out" in derby(*words, "--time", "busy")[2]


def test_models_are_a_leg_of_their_own(derby, two_libraries):
    of_models(two_libraries, with_rows=True)
    survey, models, _ = summary(derby, two_libraries).strip().splitlines()[1:]
    assert models.startswith("Shapes of models: ") and survey.startswith("Published shapes: ")
    # the author is the one of the first leg, though the other one is faster here
    assert models.split()[3] == survey.split()[2] and " 0.50 times as fast" in models
    data = json.loads(derby("rank", "--summary", "operators", "--json", "--root", two_libraries)[1])
    assert [(each["origin"], each["operators"][0]["of_shapes"]) for each in data["leads"]] == [("", 2), ("models", 1)]
