"""Broken files of every kind through the verbs: no traceback, no hang, no table that is wrong in silence."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import traceback
from pathlib import Path

import pytest
from mutating import SEED, mutated, mutations_of, run

from kernelderby.errors import DerbyError
from kernelderby.hardware import read_gpu
from kernelderby.profile.kernels import attribution
from kernelderby.profile.layers.map import FOLDER

D = "scale_rows_h4"
FAST = f"solutions/alice/toy/{D}/toy_fast"
IMPORTANCE = f"operator,importance_percent\n{D},30.5\nother,69.5\n"
SHAPES = f"# a comment\noperator,shape_id,tprod_xpua_us\n{D},0,12.5\n{D},1,30\n"
# file of the set -> how many mutations of its values and of its bytes
FILES = {
    f"definitions/toy/{D}.json": (130, 22),
    f"definitions/toy/{D}.py": (0, 11),
    f"workloads/toy/{D}.jsonl": (90, 22),
    f"{FAST}/solution.toml": (80, 22),
    f"{FAST}/main.py": (0, 11),
    f"solutions/baseline/toy/{D}/foreign.json": (70, 22),
    f"traces/h200/toy/{D}.jsonl": (150, 33),
    "profiles/published_importance.csv": (0, 33),
    "profiles/published_shapes.csv": (0, 33),
}
VERBS = (
    ("list", "--json"),
    ("show", D, "--json"),
    ("rank", "--json"),
    ("roofline", "--traces", "--json"),
    ("roofline", "--gpu", "xpu-a", "--json"),
    ("rank", "--importance", "--json"),
)


@pytest.fixture(scope="module")
def whole_set(tmp_path_factory, checkout):
    """The toy set with its missing parts: published figures, a solution that is packed only."""
    root = tmp_path_factory.mktemp("mutations") / "set"
    shutil.copytree(checkout / "tests" / "data" / "set", root)
    (root / "profiles").mkdir()
    (root / "profiles/published_importance.csv").write_text(IMPORTANCE)
    (root / "profiles/published_shapes.csv").write_text(SHAPES)
    packed = (root / f"{FAST}.json").read_text().replace('"toy_fast"', '"foreign"').replace('"alice"', '"baseline"')
    (root / f"solutions/baseline/toy/{D}/foreign.json").write_text(packed)
    return root


@pytest.fixture
def without_torch(monkeypatch):
    """`derby pack` then leaves blobs and costs out, and no code of the set runs."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in ("torch", "safetensors") else found(name, *more),
    )


def cases(root: Path, file: str):
    """Half of the cases; all with DERBY_TESTS_ALL."""
    share = 1 if "DERBY_TESTS_ALL" in os.environ else 2
    return mutations_of(root / file, random.Random(f"{SEED} {file}"), *(-(-each // share) for each in FILES[file]))


def told(mutation, error):
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{mutation.name}: {type(error).__name__}: {error!s:.300} ({last.filename}:{last.lineno})"


def test_there_are_enough(whole_set):
    assert sum(len(cases(whole_set, file)) for file in FILES) >= (600 if "DERBY_TESTS_ALL" in os.environ else 300)


@pytest.mark.parametrize("file", FILES)
def test_a_broken_file_of_a_set(whole_set, without_torch, file):
    fine = {verb: run(*verb, "--root", whole_set) for verb in VERBS}
    assert all(outcome.code == 0 for outcome in fine.values())
    assert run("pack", "--check", "--root", whole_set).code == 0
    rng = random.Random(f"{SEED} verbs {file}")
    silent, escaped = [], []
    for mutation in cases(whole_set, file):
        with mutated(whole_set / file, mutation):
            try:
                checked = run("pack", "--check", "--root", whole_set)
                for verb in rng.sample(VERBS, 2):
                    outcome = run(*verb, "--root", whole_set)
                    if mutation.must_show and outcome.out != fine[verb].out and not outcome.said:
                        silent.append((mutation.name, verb))
                    if mutation.must_show and outcome.said and checked.code == 0:
                        silent.append((mutation.name, "pack --check accepts it"))
            except BaseException as error:
                escaped.append(told(mutation, error))
    assert not escaped, "\n".join(escaped)
    assert not silent, silent
    assert {verb: run(*verb, "--root", whole_set) for verb in VERBS} == fine, "the generator left something behind"


@pytest.mark.parametrize(
    ("file", "values", "texts"),
    [("profiles/deepseek_d4_decode.toml", 60, 22), ("profiles/triton_fused_v2_b200.toml", 6, 11)],
)
def test_a_broken_profile_table(tmp_path, checkout, file, values, texts):
    for name in (file, file.replace(".toml", ".csv")):
        if (checkout / name).is_file():
            shutil.copy(checkout / name, tmp_path)
    table = tmp_path / Path(file).name
    verb = (
        ("layers", table)
        if "decode" in file
        else ("stages", table.with_suffix(".csv"), "--solution", "triton_fused_v2", "--root", checkout)
    )
    assert run("profile", *verb).code == 0
    escaped = []
    for mutation in mutations_of(table, random.Random(f"{SEED} {file}"), values, texts):
        with mutated(table, mutation):
            try:
                run("profile", *verb)
            except BaseException as error:
                escaped.append(told(mutation, error))
    assert not escaped, "\n".join(escaped)


def test_a_broken_layer_map(tmp_path, checkout):
    path, escaped = Path(shutil.copy(FOLDER / "deepseek_decode.toml", tmp_path / "mine.toml")), []
    for mutation in mutations_of(path, random.Random(f"{SEED} map"), 60, 22):
        with mutated(path, mutation):
            try:
                run("profile", "layers", checkout / "profiles/deepseek_d4_decode.toml", "--map", path)
            except BaseException as error:
                escaped.append(told(mutation, error))
    assert not escaped, "\n".join(escaped)


@pytest.mark.parametrize("kind", ["gpu", "rules"])
def test_a_broken_file_of_the_package(tmp_path, checkout, kind):
    """Hardware and attribution rules: nobody but a developer breaks them, and gets one line as well."""
    if kind == "gpu":
        path, read = Path(shutil.copy(checkout / "kernelderby/hardware/gpus/h200.toml", tmp_path)), read_gpu
    else:
        path = Path(shutil.copy(attribution.RULES / "90_triton.toml", tmp_path))
        read = lambda path: attribution._read(path, "rule")  # noqa: E731
    read(path)
    escaped = []
    for mutation in mutations_of(path, random.Random(f"{SEED} {kind}"), 60, 22):
        with mutated(path, mutation):
            try:
                read(path)
            except DerbyError as error:
                assert "\n" not in str(error), mutation.name
            except BaseException as error:
                escaped.append(told(mutation, error))
    assert not escaped, "\n".join(escaped)
