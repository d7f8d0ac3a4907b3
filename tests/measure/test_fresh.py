"""Shapes that no file holds: drawn by a secret from AXES_SPACE, checked, measured, and ranked by themselves."""

import json
from pathlib import Path

import pytest
from measuring import CPU, DEFINITION

from kernelderby.catalog import Catalog
from kernelderby.catalog.spaces import UnfitDraw, draw
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.definition import _modules, module_of
from kernelderby.measure.run.fresh import LIMITS, fresh_shapes

SECRET = "5e" * 16
DEFINITIONS = sorted(path.stem for path in Path(__file__).resolve().parents[2].glob("definitions/*/*.py"))
SPACE = '\nAXES_SPACE = {"rows": (1, 64), "factor": [2.0, -3.0]}\n'


@pytest.fixture
def spaced(misbehaviours):
    """The set of misbehaviours with an AXES_SPACE. The judge loads a definition's code once in a process."""
    source = misbehaviours / f"definitions/elementwise/{DEFINITION}.py"
    source.write_text(source.read_text() + SPACE)
    _modules.clear()
    return misbehaviours


def drawn(root, name=DEFINITION, secret=SECRET, count=6, device="cuda"):
    catalog = Catalog.open(root)
    definition = catalog.definition(name)
    return fresh_shapes(catalog, definition, module_of(definition), secret, count, device)


def test_a_secret_draws_the_same_shapes_and_no_listed_one(spaced):
    shapes = drawn(spaced)
    assert shapes == drawn(spaced) and shapes[:2] == drawn(spaced, count=2)
    assert shapes != drawn(spaced, secret="5f" * 16)
    assert len({shape.workload.uuid for shape in shapes}) == 6
    listed = [workload.axes | workload.scalars for workload in Catalog.open(spaced).workloads(DEFINITION)]
    assert not [shape for shape in shapes if shape.workload.axes | shape.workload.scalars in listed]
    workload = shapes[0].workload
    assert workload.origin == "fresh" and workload.cost.bytes_read == 8 * 16 * workload.axes["rows"]
    assert workload.raw["workload"]["inputs"]["y"]["type"] == "safetensors"  # generated
    assert {shape.case().scalars["factor"] for shape in shapes} == {2.0, -3.0}


def test_small_shapes_take_the_const_axes_of_small_axes(spaced):
    source = spaced / f"definitions/elementwise/{DEFINITION}.py"
    source.write_text(source.read_text().replace('"columns": 16', '"columns": 3') + 'SMALL_SPACE = {"rows": (2, 40)}\n')
    _modules.clear()
    sizes = [shape.case().sizes for shape in drawn(spaced, device="cpu")]
    assert {each["columns"] for each in sizes} == {3} and all(2 <= each["rows"] <= 40 for each in sizes)


@pytest.mark.parametrize(
    "space, said",
    [
        ('{"rows": (1, 64)}', "lacks factor"),
        ('{"factor": 2.0}', "rows: is None"),
        ('{"rows": (9, 2), "factor": 2.0}', "2000 draws gave no shape"),
        ('{"rows": (1, "heads * 2"), "factor": 2.0}', "rows: heads is no arithmetic"),
        ('{"rows": {"from": 1}, "factor": 2.0}', "is no rule"),
        ('{"rows": 1 << 40, "factor": 2.0}', "2000 draws gave no shape"),
        ('{"rows": 3, "factor": 2.0}', "2000 draws gave no shape"),  # one shape is not six
        ("[1, 2]", "has no AXES_SPACE"),
    ],
)
def test_a_space_that_gives_no_shapes_is_one_line(spaced, space, said):
    source = spaced / f"definitions/elementwise/{DEFINITION}.py"
    source.write_text(source.read_text().replace(SPACE, f"\nAXES_SPACE = {space}\n"))
    _modules.clear()
    with pytest.raises(DerbyError) as error:
        drawn(spaced)
    assert said in str(error.value) and "\n" not in str(error.value) and "AXES_SPACE" in str(error.value)


def test_rules_draw_what_they_say(checkout):
    definition = Catalog.open(checkout).definition("block_scaled_mm")
    numbers = iter([0.999, 0.9, 0.0, 0.5, 0.5, 0.9])
    space = {"m": (1, 10), "num_n_blocks": [7, (1, 3)], "n": "128 * num_n_blocks", "num_k_blocks": (4, 9, 4)}
    space |= {"k": "min(128 * num_k_blocks, 99999) if m > 1 else 0", "_helper": 3, "routing": [None]}
    sizes = draw(definition, space, lambda: next(numbers))
    assert sizes.axes == {"m": 10, "num_n_blocks": 7, "n": 896, "num_k_blocks": 8, "k": 1024}
    assert sizes.scalars == {} and sizes.generator == {}
    with pytest.raises(UnfitDraw):  # n == 128 * num_n_blocks, the definition demands
        draw(definition, {"m": 1, "n": 5, "k": 128, "num_n_blocks": 1, "num_k_blocks": 1}, lambda: 0.0)


def test_ranges_are_even_in_the_logarithm_with_powers_of_two_among_them(checkout):
    import random

    definition = Catalog.open(checkout).definition("moe_count_and_sort")
    uniform = random.Random(1).random
    found = [draw(definition, {"num_tokens": (1, 4096)}, uniform).axes["num_tokens"] for _ in range(4000)]
    assert min(found) == 1 and max(found) == 4096
    assert 0.45 < sum(each <= 64 for each in found) / 4000 < 0.55
    near = {power + beside for power in (128, 256, 512, 1024, 2048) for beside in (-1, 0, 1)}
    assert 0.2 < sum(each in near for each in found) / sum(100 < each < 2100 for each in found) < 0.35


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_definition_has_a_space(checkout, name, device):
    shapes = drawn(checkout, name, count=4, device=device)
    assert len(shapes) == 4
    for shape in shapes:
        assert sum(shape.workload.cost.flops.values()) <= LIMITS[device].flops
        assert shape.workload.cost.needed() <= 2 * LIMITS[device].nbytes


def test_check_takes_fresh_shapes_and_repeats_them(derby, spaced):
    words = ("--device", "cpu", "--json", "--root", spaced)
    code, out, err = derby("check", "honest", "--fresh", 3, *words)
    first = json.loads(out)
    assert (code, err, len(first["results"])) == (0, "", 3), out
    assert all(" fresh " in each["case"] for each in first["results"])
    again = json.loads(derby("check", "honest", "--fresh", 3, "--secret", first["secret"], *words)[1])
    assert again == first
    other = json.loads(derby("check", "honest", "--fresh", 3, *words)[1])
    assert [each["case"] for each in other["results"]] != [each["case"] for each in first["results"]]
    code, out, _ = derby("check", "not_a_number", "--fresh", 2, "--secret", SECRET, "--device", "cpu", "--root", spaced)
    assert code == 1 and f"derby check not_a_number --fresh 2 --secret {SECRET}" in out


@pytest.mark.parametrize("words", [["--workloads", "8"], ["--origin", "survey"], ["--seeds", "2"]])
def test_fresh_shapes_are_not_chosen_among_the_listed(derby, spaced, words):
    code, out, err = derby("check", "honest", "--fresh", 2, *words, "--device", "cpu", "--root", spaced)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "--fresh: " in err


def test_without_a_space_the_definition_is_named(derby, misbehaviours):
    _modules.clear()
    code, out, err = derby("check", "honest", "--fresh", 2, "--device", "cpu", "--root", misbehaviours)
    assert code == 1 and "has no AXES_SPACE" in out and "docs/shapes.md" in out


def test_rows_of_fresh_shapes_tell_their_shape_and_rank_by_themselves(derby, spaced):
    from kernelderby.measure.run.fresh import fresh_workloads
    from kernelderby.measure.run.plan import Settings, make_plan
    from kernelderby.measure.run.progress import Observer
    from kernelderby.measure.run.runner import Runner

    catalog = Catalog.open(spaced)
    settings = Settings(rounds=2, most_rounds=2, iterations=4, timeout_seconds=30, secret=SECRET)
    shapes = fresh_workloads(catalog, ["honest"], [], SECRET, 2)
    plan = make_plan(catalog, CPU, settings, ["honest"], fresh=shapes)
    assert [job.workload.uuid for job in plan.jobs] == [each.uuid for each in sorted(shapes[DEFINITION], key=work)]
    rows = Runner(catalog, CPU, settings, Observer()).run(plan)
    assert [row.status for row in rows] == ["passed"] * 2
    assert {row.shape["origin"] for row in rows} == {"fresh"} and all(row.shape["cost"] for row in rows)
    assert make_plan(Catalog.open(spaced), CPU, settings, ["honest"], fresh=shapes).settled == 2  # not again
    read = Catalog.open(spaced)
    found = read.shapes(DEFINITION, read.traces())
    assert sorted(each.uuid for each in found if each.origin == "fresh") == sorted(row.uuid for row in rows)
    assert {each.uuid: each.cost for each in found} | {each.uuid: each.cost for each in shapes[DEFINITION]} == {
        each.uuid: each.cost for each in found
    }
    with pytest.raises(DerbyError, match="--fresh: "):
        make_plan(catalog, CPU, settings, ["honest"], workloads=["8"], fresh=shapes)


def test_fresh_shapes_stand_beside_those_of_an_origin(spaced):
    from kernelderby.measure.run.fresh import fresh_workloads
    from kernelderby.measure.run.plan import Settings, make_plan

    path = Catalog.open(spaced).workloads_path(DEFINITION)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"origin": "models"}) + "\n" for line in lines[:1]))
    catalog = Catalog.open(spaced)
    shapes = fresh_workloads(catalog, ["honest"], [], SECRET, 2)
    plans = {
        origins: make_plan(catalog, CPU, Settings(), ["honest"], origins=origins, fresh=shapes)
        for origins in ((), ("models",))
    }
    assert [job.workload.origin for job in plans[()].jobs] == ["fresh"] * 2
    assert sorted(job.workload.origin for job in plans[("models",)].jobs) == ["fresh", "fresh", "models"]


def work(workload):
    return workload.cost.needed()
