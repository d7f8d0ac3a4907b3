"""catalog: the contents of a good set, and one line for each kind of bad input."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError

D = "scale_rows_h4"
DEFINITION, WORKLOADS, TRACES = f"definitions/toy/{D}.json", f"workloads/toy/{D}.jsonl", f"traces/h200/toy/{D}.jsonl"
FAST = f"solutions/alice/toy/{D}/toy_fast"


def read_everything(root):
    catalog = Catalog.open(root, strict=True)
    for name in catalog.definitions:
        catalog.workloads(name)
    return catalog, catalog.solutions, catalog.traces()


def fails(root, *words):
    """Reading the set ends in one line that holds all the words."""
    with pytest.raises(DerbyError) as caught:
        read_everything(root)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_definition_has_its_axes_sizes_and_tensors(small_set):
    definition = Catalog.open(small_set).definition(D)
    assert definition.axes == {"rows": None, "columns": 4}
    assert definition.sizes({"rows": 7}) == {"rows": 7, "columns": 4}
    assert list(definition.inputs) == ["x", "scale", "factor"]
    assert definition.inputs["x"].shape == ("rows", "columns") and definition.inputs["factor"].shape is None
    assert definition.tolerances[0].name == "exact" and definition.custom_inputs_entrypoint == "generate_inputs"
    assert definition.source_path.name == f"{D}.py" and "def run" in definition.reference


def test_sizes_wants_exactly_the_variable_axes(small_set):
    definition = Catalog.open(small_set).definition(D)
    for axes in ({}, {"rows": 1, "columns": 4}, {"row": 1}):
        with pytest.raises(DerbyError, match="must give rows"):
            definition.sizes(axes)


def test_a_workload_has_its_axes_scalars_and_cost(small_set):
    first, second = Catalog.open(small_set).workloads(D)
    assert (first.axes, second.axes) == ({"rows": 2}, {"rows": 1000})
    assert first.scalars == {"factor": 2.0}
    assert first.cost.flops == {"float32": 16} and first.cost.facts == {"elements": 8}
    assert first.raw["workload"]["uuid"] == first.uuid


def test_the_seed_of_a_workload_is_fixed_by_its_uuid(small_set):
    """First 6 bytes of SHA-256("abc"), a published test vector: ba7816bf 8f01..."""
    workload = Catalog.open(small_set).workloads(D)[0]
    assert type(workload)(D, "abc", {}, {}, None, {}).seed == 0xBA7816BF8F01


def test_a_solution_has_its_sources_stages_and_needs(small_set):
    catalog = Catalog.open(small_set)
    fast = catalog.solution("toy_fast")
    assert (fast.author, fast.op_type, fast.entry_point, fast.requires.cpu) == ("alice", "toy", "main.py::run", True)
    assert list(fast.sources) == ["main.py"] and fast.stages[0].kernels == ("elementwise_kernel",)
    assert {solution.name for solution in catalog.solutions_of(D)} == {"toy_fast", "toy_baseline"}


def test_the_packed_json_gives_the_same_solution_as_the_folder(small_set):
    before = Catalog.open(small_set).solution("toy_fast")
    shutil.rmtree(small_set / FAST)
    after = Catalog.open(small_set).solution("toy_fast")
    assert after.folder is None and after.hash == before.hash
    assert (after.sources, after.requires, after.stages) == (before.sources, before.requires, before.stages)


def test_the_hash_follows_the_code_and_not_the_prose(small_set):
    before = Catalog.open(small_set).solution("toy_fast").hash
    edit(small_set / FAST / "solution.toml", "One line of torch.", "Another text.")
    assert Catalog.open(small_set).solution("toy_fast").hash == before
    edit(small_set / FAST / "main.py", "torch.mul", "torch.multiply")
    assert Catalog.open(small_set).solution("toy_fast").hash != before


def test_rows_are_read_for_one_or_all_operators(small_set):
    rows = Catalog.open(small_set).traces(D)
    assert len(rows) == 4 and rows == Catalog.open(small_set).traces()
    assert {row.solution for row in rows} == {"toy_fast", "toy_baseline"}


def test_flashinfer_benchs_own_traces_are_read_as_well(small_set):
    line = json.loads((small_set / TRACES).read_text().splitlines()[0])
    del line["measurement"]
    (small_set / f"traces/toy/{D}.jsonl").parent.mkdir(parents=True)
    (small_set / f"traces/toy/{D}.jsonl").write_text(json.dumps(line) + "\n")
    assert max(row.protocol for row in Catalog.open(small_set).traces(D)) == "flashinfer-bench-events"


@pytest.mark.parametrize(
    ("folder", "timestamp", "log", "protocol"),
    [
        ("toy", "2026-05-01T10:00:00", "", "flashinfer-bench-events"),  # where 0.1.2 writes
        ("somebody/toy", "2026-05-01T10:00:00", "", "flashinfer-bench-cupti"),  # where its main branch writes
        ("somebody/toy", "2026-01-31T10:00:00", "", "flashinfer-bench-events"),  # moved there, older than that timer
        (
            "somebody/toy",
            "2026-05-01T10:00:00",
            "CUPTI is not installed. Falling back to CUDA events for benchmarking.",
            "flashinfer-bench-events",
        ),
    ],
)
def test_flashinfer_benchs_two_timers_are_two_protocols(small_set, folder, timestamp, log, protocol):
    line = json.loads((small_set / TRACES).read_text().splitlines()[0])
    del line["measurement"]
    line["evaluation"] |= {"timestamp": timestamp, "log": log}
    path = small_set / "traces" / folder / f"{D}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(line) + "\n")
    assert [row.protocol for row in Catalog.open(small_set).traces(D) if row.place.path == str(path)] == [protocol]


def test_a_set_without_solutions_or_traces_is_empty_and_stays_so(small_set):
    shutil.rmtree(small_set / "solutions")
    shutil.rmtree(small_set / "traces")
    catalog, solutions, traces = read_everything(small_set)
    assert solutions == {} and traces == []
    assert not (small_set / "solutions").exists() and not (small_set / "traces").exists()


def test_a_wrong_root_is_an_error_and_never_a_new_folder(tmp_path):
    with pytest.raises(DerbyError, match="--root"):
        Catalog.open(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("definition", "scale_row_h4", D),
        ("solution", "toy_fats", "toy_fast"),
        ("solution", "zzz", "toy_baseline, toy_fast"),
    ],
)
def test_unknown_names_suggest_the_near_ones(small_set, kind, name, near):
    with pytest.raises(DerbyError, match=re.escape(near)):
        getattr(Catalog.open(small_set), kind)(name)


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (DEFINITION, f'"name": "{D}"', '"name": "other"', ["name", "'other'", D, "rename"]),
        (DEFINITION, '"op_type": "toy"', '"op_type": "moe"', ["op_type", "'moe'", "'toy'"]),
        (DEFINITION, '"type": "var"', '"type": "expr"', ["axes.rows.type", "expr"]),
        (DEFINITION, '"value": 4', '"value": "4"', ["axes.columns.value", "integer"]),
        (DEFINITION, '"dtype": "float32"', '"kind": "float32"', ["dtype", "is missing"]),
        (DEFINITION, '"atol": 1e-06', '"atol": true', ["tolerances[0].atol", "number"]),
        (
            DEFINITION,
            '"atol": 1e-06',
            '"outputs": ["z"], "atol": 1',
            ["tolerances[0].outputs", "'z' is no output", "y"],
        ),
        (DEFINITION, '        "rows"\n', '        "row"\n', ["inputs.scale.shape", "'row' is no axis"]),
        (DEFINITION, '"inputs": {', '"inputs": ', [f"{D}.json:", "not JSON"]),
        (WORKLOADS, '"rows": 1000', '"row": 1000', [":2", "workload.axes", "lacks rows"]),
        (WORKLOADS, '"x": {"type": "random"}, ', "", [":1", "workload.inputs", "lacks x"]),
        (WORKLOADS, '"type": "scalar", "value": 0.5', '"type": "scalar"', [":2", "inputs.factor.value"]),
        (WORKLOADS, f'"definition": "{D}"', '"definition": "other"', [":1", "definition", "path"]),
        (f"{FAST}/solution.toml", 'name = "toy_fast"', 'name = "toy_quick"', ["name", "'toy_quick'", "'toy_fast'"]),
        (f"{FAST}/solution.toml", 'author = "alice"', 'author = "bob"', ["author", "'bob'", "'alice'"]),
        (f"{FAST}/solution.toml", f'"{D}"', '"other"', ["definition", "'other'"]),
        (f"{FAST}/solution.toml", '"python"', '"tritn"', ["language", "did you mean triton"]),
        (f"{FAST}/solution.toml", "main.py::run", "main.py", ["entry_point", "<file>::<function>"]),
        (
            f"{FAST}/solution.toml",
            "destination_passing_style = true\n",
            "",
            ["destination_passing_style", "is missing"],
        ),
        (f"{FAST}/solution.toml", '["CPU"]', "[]", ["target_hardware", "at least one GPU"]),
        (f"{FAST}/solution.toml", "cpu = true", "cpus = true", ["requires.cpus", "did you mean cpu"]),
        (
            f"{FAST}/solution.toml",
            "cpu = true",
            'minimum_compute_capability = "90"',
            ["minimum_compute_capability", "9.0"],
        ),
        (f"{FAST}/solution.toml", "elementwise_kernel", "(", ["stages[0].kernels", "pattern"]),
        (f"{FAST}/solution.toml", "title = ", 'role = "gem"\ntitle = ', ["stages[0].role", "gemm"]),
        (f"{FAST}/solution.toml", "[requires]", "[requires", ["solution.toml", "not TOML"]),
        (TRACES, '"solution": "toy_fast"', '"solutions": "toy_fast"', [":2", "solution", "is missing"]),
        (TRACES, f'"definition": "{D}"', '"definition": "other"', [":1", "definition", "path"]),
        (TRACES, '"status": "passed"', '"status": "great"', [":1", "great"]),
    ],
)
def test_a_bad_field_is_one_line_with_file_and_field(small_set, file, old, new, words):
    edit(small_set / file, old, new)
    fails(small_set, small_set / file, *words)


def test_the_same_uuid_twice_is_an_error(small_set):
    lines = (small_set / WORKLOADS).read_text().splitlines(keepends=True)
    (small_set / WORKLOADS).write_text(lines[0] + lines[0])
    fails(small_set, f"{WORKLOADS}:2", "workload.uuid")


def test_the_same_solution_name_twice_is_an_error(small_set):
    other = small_set / f"solutions/bob/toy/{D}/toy_fast"
    shutil.copytree(small_set / FAST, other)
    edit(other / "solution.toml", '"alice"', '"bob"')
    fails(small_set, "name", "unique", other, small_set / FAST)


def test_a_folder_of_sources_without_solution_toml_is_an_error_but_a_cache_is_not(small_set):
    (small_set / f"solutions/alice/toy/{D}/left/__pycache__").mkdir(parents=True)
    (small_set / f"solutions/alice/toy/{D}/left/__pycache__/main.pyc").write_bytes(b"")
    read_everything(small_set)
    (small_set / f"solutions/alice/toy/{D}/left/main.py").write_text("")
    fails(small_set, "left/solution.toml", "is missing")


@pytest.mark.parametrize("place", ["definitions/notes.json", f"{FAST}/config.json"])
def test_no_stray_json_where_flashinfer_bench_would_load_it(small_set, place):
    (small_set / place).write_text("{}")
    fails(small_set, small_set / place, "flashinfer-bench loads every JSON")


def test_a_solution_of_an_unknown_definition_is_an_error(small_set):
    shutil.move(small_set / f"solutions/alice/toy/{D}", small_set / "solutions/alice/toy/scale_row_h4")
    edit(small_set / "solutions/alice/toy/scale_row_h4/toy_fast/solution.toml", D, "scale_row_h4")
    fails(small_set, "definition", "did you mean", D)


def test_a_last_line_cut_short_is_left_out_with_a_warning(small_set):
    text = (small_set / TRACES).read_text()
    (small_set / TRACES).write_text(text[:-40])
    catalog = Catalog.open(small_set)
    assert len(catalog.traces()) == 3
    assert len(catalog.warnings) == 1 and f"{TRACES}:4" in catalog.warnings[0]


def test_a_last_line_without_newline_that_is_whole_counts(small_set):
    (small_set / TRACES).write_text((small_set / TRACES).read_text().rstrip("\n"))
    catalog, _, rows = read_everything(small_set)
    assert len(rows) == 4 and catalog.warnings == []


@pytest.mark.parametrize("number", [2, 4])
def test_a_broken_line_that_no_kill_explains_is_an_error(small_set, number):
    lines = (small_set / TRACES).read_text().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1][:50] + "\n"
    (small_set / TRACES).write_text("".join(lines))
    fails(small_set, f"{TRACES}:{number}", "not JSON")


def test_our_own_set_holds_together(checkout):
    catalog, solutions, _ = read_everything(checkout)
    moe = catalog.workloads("moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048")
    assert len([each for each in moe if each.origin == "contest"]) == 19
    packed_alone = {solution.author for solution in solutions.values() if solution.folder is None}
    assert packed_alone == {"inductor"}, "all others have sources; a template has made these"


def test_the_shortest_label_that_tells_workloads_apart(checkout):
    from kernelderby.catalog.selection import shortest_labels

    catalog = Catalog.open(checkout)
    attention = [each for each in catalog.workloads("unified_attention") if each.origin == "survey"]
    assert shortest_labels(attention)[attention[0].uuid] == "num_tokens=33280"
    gemm = catalog.workloads("block_scaled_mm")
    labels = shortest_labels(gemm)
    assert labels[gemm[0].uuid] == "m=349, n=2048" and len(set(labels.values())) == len(gemm)
    skewed = [each for each in catalog.workloads("fused_moe") if each.generator]
    assert len(set(shortest_labels(skewed).values())) == len(skewed) > 1
    twins = [gemm[0], replace(gemm[0], uuid="another-one")]
    assert shortest_labels(twins)["another-one"].endswith(" another-")
