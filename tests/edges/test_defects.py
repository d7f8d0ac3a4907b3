"""What outsiders found at the edges, line by line: each was accepted, lost or printed as a traceback once."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from mutating import run

from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import export, pack, problems
from kernelderby.errors import DerbyError
from kernelderby.hardware import gpus, read_gpu
from kernelderby.measure.run.rows import settled_keys
from kernelderby.report.markers import blocks, read_page, replace_block
from kernelderby.roofline import selection
from kernelderby.rows.measurement import FileLine, Measurement, Status
from kernelderby.store.appended import append_line

D = "scale_rows_h4"
DEFINITION, WORKLOADS, TRACES = f"definitions/toy/{D}.json", f"workloads/toy/{D}.jsonl", f"traces/h200/toy/{D}.jsonl"
FAST = f"solutions/alice/toy/{D}/toy_fast"


def made_of(recorded, name=""):
    """A solution whose code has this hash."""
    return SimpleNamespace(name=name, has_code=recorded.__eq__, has_kernels=lambda other, uuid: other == recorded)


def edit_json(path, change, line=None):
    """change(data) on a JSON file or on one line of a JSONL file."""
    lines = path.read_text().splitlines() if line is not None else [path.read_text()]
    data = json.loads(lines[line or 0])
    change(data)
    lines[line or 0] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n")


def is_left_out(root, *words):
    """One warning with the words, the rest of the set works, and `pack --check` calls it an error."""
    catalog = Catalog.open(root)
    for name in catalog.definitions:
        catalog.workloads(name)
    catalog.solutions, catalog.traces()
    assert len(catalog.warnings) == 1, catalog.warnings
    for word in words:
        assert word in catalog.warnings[0]
    assert run("list", "--root", root).code == 0
    assert catalog.warnings[0].removesuffix("; left out") in problems(root)
    return catalog


@pytest.fixture
def two_sets(small_set):
    """The toy set with a second definition, so that there is a rest that works."""
    for part, old in (("definitions", DEFINITION), ("workloads", WORKLOADS)):
        path = small_set / old.replace(D, "other")
        path.write_text((small_set / old).read_text().replace(D, "other"))
        assert part in str(path)
    return small_set


# ------------------------------------------------------------------------------------------------------- A.1 and A.2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line["workload"]["axes"].update(rows="many" * 1000), ["workload.axes.rows", "integer"]),
        (lambda line: line["workload"]["axes"].update(rows=-3), ["workload.axes.rows", "-3"]),
        (lambda line: line["workload"]["axes"].update(rows=3.5), ["workload.axes.rows", "3.5"]),
        (lambda line: line.update(shape_id="three"), ["shape_id", "'three'"]),
        (lambda line: line.update(importance=1e308), ["importance", "1e9 at most"]),
        (lambda line: line.update(importance=True), ["importance"]),
        (lambda line: line.update(framework=["sglang"]), ["framework"]),
        (lambda line: line.update(call_count="often"), ["call_count"]),
        (lambda line: line.update(origin="\x1b[2J"), ["origin", "control characters"]),
        (lambda line: line["cost"]["flops"].update(float32="16"), ["cost.flops.float32"]),
        (lambda line: line["cost"].update(flops=3), ["cost.flops"]),
        (lambda line: line["workload"]["inputs"]["factor"].update(value="2"), ["inputs.factor.value"]),
        (lambda line: line["workload"]["inputs"]["x"].update(type="scalar", value=1), ["inputs.x.type"]),
    ],
)
def test_a_broken_workload(small_set, change, words):
    edit_json(small_set / WORKLOADS, change, line=0)
    catalog = is_left_out(small_set, f"{WORKLOADS}:1", *words)
    assert len(catalog.workloads(D)) == 1 and len(catalog.traces()) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one["inputs"]["x"].update(dtype="bf16"), ["inputs.x.dtype", "did you mean"]),
        (lambda one: one["axes"]["columns"].update(value=-3), ["axes.columns.value"]),
        (lambda one: one["axes"]["columns"].update(value=3.5), ["axes.columns.value"]),
        (lambda one: one["axes"].update(batch={"type": "var"}), ["axes.batch", "no input's shape"]),
        (lambda one: one.update(constraints=["columns == 5"]), ["constraints[0]", "does not hold"]),
        (lambda one: one.update(constraints=["columns == "]), ["constraints[0]", "no expression"]),
        (lambda one: one["tolerances"][0].update(atol=-1), ["tolerances[0].atol"]),
        (lambda one: one["tolerances"][0].update(rtol="NaN"), ["tolerances[0].rtol"]),
        (lambda one: one["tolerances"][0].update(required_matched_ratio=0), ["required_matched_ratio"]),
        (lambda one: one["tolerances"][0].update(required_matched_ratio=5), ["required_matched_ratio"]),
        (
            lambda one: one["outputs"].update(z=one["outputs"]["y"]) or one["tolerances"][0].update(outputs=["y"]),
            ["tolerances", "none is for the output z"],
        ),
        (lambda one: one["tolerances"].append(one["tolerances"][0]), ["tolerances[1].name", "there already"]),
        (lambda one: one["outputs"].update(x=one["outputs"]["y"]), ["outputs.x", "an input too"]),
    ],
)
def test_a_broken_definition(two_sets, change, words):
    edit_json(two_sets / DEFINITION.replace(D, "other"), change)
    catalog = is_left_out(two_sets, "other.json", *words)
    assert set(catalog.definitions) == {D} and set(catalog.solutions) == {"toy_fast", "toy_baseline"}
    with pytest.raises(DerbyError, match="other.json"):
        catalog.definition("other")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_has_not(two_sets, number):
    path = two_sets / DEFINITION.replace(D, "other")
    path.write_text(path.read_text().replace("1e-06", number, 1))
    is_left_out(two_sets, "other.json")


def test_a_reference_without_run(two_sets):
    (two_sets / "definitions/toy/other.py").write_text("def start(x):\n    return x\n")
    is_left_out(two_sets, "other.py", "has no run()")


def test_a_reference_that_is_no_python_is_told_by_pack_check(small_set):
    with (small_set / f"definitions/toy/{D}.py").open("a") as file:
        file.write("def broken(:\n")
    assert run("list", "--root", small_set).code == 0
    assert any(f"{D}.py: is no Python" in problem for problem in problems(small_set))


def test_constraints_are_demanded_of_workloads(small_set):
    constraints = ["rows % 4 == 0", "rows == kv_indptr[-1].item()"]  # what speaks of contents cannot be judged here
    edit_json(small_set / DEFINITION, lambda one: one.update(constraints=constraints))
    catalog = is_left_out(small_set, f"{WORKLOADS}:1", "'rows % 4 == 0'")
    assert [workload.axes for workload in catalog.workloads(D)] == [{"rows": 1000}]


def test_count_cost_that_gives_nonsense_is_not_packed(small_set):
    pytest.importorskip("safetensors")
    from kernelderby.measure.judge.blobs import pack_blobs

    source = small_set / f"definitions/toy/{D}.py"
    before = (small_set / WORKLOADS).read_bytes()
    for nonsense in (
        '{"flops": 3}',
        "7",
        "1 / 0",
        '{"flops": {"float32": "many"}, "bytes_read": 1, "bytes_written": 1}',
    ):
        source.write_text(
            source.read_text().split("def count_cost")[0] + f"def count_cost(axes, inputs):\n    return {nonsense}\n"
        )
        pack(small_set)
        with pytest.raises(DerbyError, match="count_cost: workload"):
            pack_blobs(Catalog.open(small_set), check=True)
    assert (small_set / WORKLOADS).read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_bytes_per_second = 4.8e12", 'memory_bytes_per_second = "4.8e12"', "memory_bytes_per_second: must be"),
        ("memory_bytes_per_second = 4.8e12", "memory_bytes_per_secnd = 4.8e12", "memory_bytes_per_sec"),
        ("memory_bytes_per_second = 4.8e12", "memory_bytes_per_second = nan", "memory_bytes_per_second: must be"),
        ('date = "2026-11"', "", "date: is missing"),
        ("bfloat16 = 989e12", "bfloat16 = -1", "flops_per_second.bfloat16"),
    ],
)
def test_a_broken_hardware_file(tmp_path, checkout, old, new, words):
    text = (checkout / "kernelderby/hardware/gpus/h200.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(DerbyError, match=words):
        read_gpu(tmp_path / "mine.toml")
    assert "h200" in gpus()


# --------------------------------------------------------------------------------------------------------- A.3 and A.4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row["measurement"].update(latency_us=0.001), "latency_us"),
        (lambda row: row["measurement"].update(latency_us=True), "latency_us"),
        (lambda row: row["measurement"].update(samples_us=[[float("nan")]]), ":1"),
        (lambda row: row["measurement"].update(samples_us=[[]]), "samples_us[0]"),
        (lambda row: row["measurement"].update(samples_us=[[-8.0, 8.0]]), "samples_us[0][0]"),
        (lambda row: row["workload"]["axes"].update(rows=999), "those of uuid"),
        (lambda row: row["workload"]["inputs"]["factor"].update(value=77.0), "inputs.factor.value"),
        (lambda row: row["workload"]["inputs"]["factor"].update(type=-1), "workload: inputs.factor.type"),
        (lambda row: row["workload"]["inputs"]["x"].clear(), "workload: inputs.x.type"),
        (lambda row: row["evaluation"].update(status="INCORRECT_NUMERICAL", performance=None), "evaluation.status"),
        (lambda row: row["evaluation"]["performance"].update(latency_ms=1e-6, speedup_factor=None), "latency_ms"),
        (lambda row: row["measurement"].update(status="great"), "'great'"),
        (lambda row: row["evaluation"].update(timestamp="yesterday"), "no ISO time"),
        (lambda row: row["measurement"].update(protocol=["a"]), "protocol"),
        (lambda row: row["evaluation"]["environment"].update(hardware={}), "hardware"),
        (lambda row: row["workload"].update(uuid=3), "uuid"),
        (lambda row: row["measurement"]["environment"].update(commit=5), "commit"),
        (lambda row: row["measurement"]["correctness"]["matched_ratio"].update(exact=7), "matched_ratio.exact"),
        (lambda row: row.pop("solution"), "solution: is missing"),
    ],
)
def test_a_row_that_contradicts_itself(small_set, change, words):
    edit_json(small_set / TRACES, change, line=0)
    catalog = is_left_out(small_set, f"{TRACES}:1", words)
    assert len(catalog.traces()) == 3
    out = run("rank", "--json", "--root", small_set)
    assert out.code == 0 and f"{TRACES}:1" in out.err
    assert run("roofline", "--traces", "--json", "--root", small_set).code == 0


def test_unknown_fields_of_a_newer_version_are_ignored(small_set):
    before = run("rank", "--json", "--root", small_set)
    edit_json(
        small_set / TRACES,
        lambda row: (row.update(newer=1), row["measurement"].update(newer=[{}]), row["evaluation"].update(newer=None)),
        line=0,
    )
    edit_json(small_set / DEFINITION, lambda one: one.update(newer={"a": 1}))
    edit_json(small_set / WORKLOADS, lambda line: line.update(newer={"a": 1}), line=0)
    assert run("rank", "--json", "--root", small_set) == before
    assert problems(small_set) == []
    pack(small_set)
    assert json.loads((small_set / DEFINITION).read_text())["newer"] == {"a": 1}


def test_a_misspelt_field_of_a_solution_is_told_and_the_solution_stays(small_set):
    path = small_set / FAST / "solution.toml"
    path.write_text(path.read_text().replace("cpu = true", "cpus = true"))
    catalog = Catalog.open(small_set)
    assert "toy_fast" in catalog.solutions
    assert catalog.warnings == [f"{path}: requires.cpus: is no field; did you mean cpu?"]
    assert catalog.warnings[0] in problems(small_set)


def test_one_broken_solution_leaves_the_others(small_set):
    (small_set / FAST / "solution.toml").write_text("name = [")
    catalog = is_left_out(small_set, "toy_fast/solution.toml", "not TOML")
    assert set(catalog.solutions) == {"toy_baseline"}
    with pytest.raises(DerbyError, match="not TOML"):
        catalog.solution("toy_fast")
    done = run("pack", "--check", "--json", "--root", small_set)
    assert done.code == 1 and any("not TOML" in line for line in json.loads(done.out)["broken"])


def test_many_broken_rows_are_one_warning(small_set):
    path = small_set / TRACES
    path.write_text(path.read_text() + "{}\n" * 500)
    catalog = is_left_out(small_set, f"{TRACES}:5", "499 other lines")
    assert len(catalog.traces()) == 4


# ---------------------------------------------------------------------------------------------------------------- A.6


def test_of_one_file_the_last_row_counts_whatever_the_clock_said(small_set):
    """A crash when the clock was a month ahead; then it passed, with the clock set right. bench and rank agree."""
    path = small_set / TRACES
    passed = json.loads(path.read_text().splitlines()[0])
    crashed = json.loads(json.dumps(passed))
    crashed["evaluation"].update(
        status="RUNTIME_ERROR",
        performance=None,
        correctness=None,
        timestamp=(datetime.now(UTC) + timedelta(days=30)).isoformat(),
    )
    crashed["measurement"].update(status="crashed", latency_us=None, samples_us=[], correctness=None)
    path.write_text(json.dumps(crashed) + "\n" + json.dumps(passed) + "\n")
    catalog = Catalog.open(small_set)
    rows = catalog.traces(D)
    assert len(rows) == 2 and "lies in the future" in catalog.warnings[0]
    name = passed["solution"]
    solution = made_of(passed["measurement"]["solution_hash"], name)
    chosen = selection.newest_rows(rows, {name: solution})
    assert [each.measurement.status for each in chosen.values()] == [Status.PASSED]
    assert len(settled_keys(rows, [solution])) == 1
    path.write_text(json.dumps(passed) + "\n" + json.dumps(crashed) + "\n")
    rows = Catalog.open(small_set).traces(D)
    assert settled_keys(rows, [solution]) == set()
    assert [each.measurement.status for each in selection.newest_rows(rows, {name: made_of("0" * 16)}).values()] == [
        Status.CRASHED
    ]


def test_of_several_files_the_later_moment_counts(small_set):
    line = json.loads((small_set / TRACES).read_text().splitlines()[0])
    older, newer = (
        Measurement.from_trace(line | {"evaluation": line["evaluation"] | {"timestamp": when}})
        for when in ("2026-11-01T00:00:00+00:00", "2026-11-02T00:00:00+00:00")
    )
    from msgspec.structs import replace

    for first, second in ((older, newer), (newer, older)):
        rows = [replace(first, place=FileLine("a", 1)), replace(second, place=FileLine("b", 1))]
        found = selection.newest_rows(rows, {older.solution: made_of("0" * 16)})
        assert [each.measurement.timestamp for each in found.values()] == [newer.timestamp]


# ------------------------------------------------------------------------------------------------------- B.2, B.3, B.5


@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/hostname", "a/../../secret"])
def test_a_workload_whose_blob_lies_outside(small_set, path):
    edit_json(small_set / WORKLOADS, lambda line: line["workload"]["inputs"]["scale"].update(path=path), line=0)
    is_left_out(small_set, f"{WORKLOADS}:1", "inputs.scale.path")


def dataset_of(tmp_path):
    (tmp_path / "dataset" / "definitions").mkdir(parents=True)
    return tmp_path / "dataset"


def with_blobs(root):
    for workload in Catalog.open(root).workloads(D):
        path = root / workload.inputs["scale"]["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"blob")
    return root


def test_export_follows_no_symlink_out_of_the_set_nor_out_of_the_dataset(small_set, tmp_path):
    with_blobs(small_set)
    blob = small_set / Catalog.open(small_set).workloads(D)[0].inputs["scale"]["path"]
    (tmp_path / "secret").write_text("secret")
    blob.unlink()
    blob.symlink_to(tmp_path / "secret")
    dataset = dataset_of(tmp_path)
    with pytest.raises(DerbyError, match="symlink"):
        export(small_set, dataset)
    assert not list(dataset.rglob("*.safetensors"))
    blob.unlink()
    blob.write_bytes(b"blob")
    (tmp_path / "elsewhere").mkdir()
    (dataset / "solutions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DerbyError, match="symlink"):
        export(small_set, dataset)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_symlinked_source_is_not_packed(small_set, tmp_path):
    (tmp_path / "secret.h").write_text("// secret")
    (small_set / FAST / "secret.h").symlink_to(tmp_path / "secret.h")
    catalog = Catalog.open(small_set)
    assert "toy_fast" not in catalog.solutions and "symlink" in catalog.warnings[0]
    with pytest.raises(DerbyError, match="symlink"):
        pack(small_set)
    assert "secret" not in (small_set / f"{FAST}.json").read_text()


@pytest.mark.parametrize("path", ["../../escaped.py", "/tmp/escaped.py", "a/../../escaped.py", "", "a\\b.py", "x\n.py"])
def test_a_packed_source_that_would_be_written_outside_the_cache(small_set, path):
    shutil.rmtree(small_set / FAST)
    edit_json(small_set / f"{FAST}.json", lambda one: one["sources"].append({"path": path, "content": "x"}))
    is_left_out(small_set, "toy_fast.json", "sources[1].path")


@pytest.mark.parametrize("name", ["os; import antigravity", "torch, os", "..secret", "a-b", "os\nimport x", ""])
def test_a_module_name_that_is_code(small_set, name):
    shutil.rmtree(small_set / FAST)
    edit_json(small_set / f"{FAST}.json", lambda one: one["requires"].update(modules=[name]))
    is_left_out(small_set, "toy_fast.json", "requires.modules[0]")


def test_nothing_of_a_set_runs_where_it_is_only_looked_at(small_set, tmp_path, monkeypatch):
    """A set in the current directory with a torch of its own, and code that leaves a trace wherever it runs."""
    trap = f"open({str(tmp_path / 'it_ran')!r}, 'w').close()\n"
    for module in ("torch", "numpy", "rich", "msgspec", "triton"):
        (small_set / module).mkdir()
        (small_set / module / "__init__.py").write_text(trap)
    for file in (small_set / FAST / "main.py", small_set / f"definitions/toy/{D}.py"):
        file.write_text(trap + file.read_text())
    pack(small_set)
    monkeypatch.chdir(with_blobs(small_set))
    for verb in (("list",), ("show", D), ("rank",), ("roofline", "--traces"), ("export", dataset_of(tmp_path))):
        assert run(*verb).code == 0, verb
    from kernelderby.measure.machine import probe, requirements

    pytest.importorskip("torch")
    assert probe.find_machine(Path(), "cpu").libs["torch"]  # what `derby doctor` asks of a worker
    requirements.module_problem.cache_clear()
    assert requirements.module_problem("torch") is None or "not" in requirements.module_problem("torch")
    assert not (tmp_path / "it_ran").exists()


def test_pack_replaces_in_one_step(small_set, monkeypatch):
    before = (small_set / f"{FAST}.json").read_bytes()
    (small_set / FAST / "main.py").write_text("def run(x, scale, factor, y):\n    pass\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DerbyError, match="No space left"):
            pack(small_set)
    assert (small_set / f"{FAST}.json").read_bytes() == before
    assert not list(small_set.rglob("*.unfinished"))


def test_an_export_that_was_cut_short_is_mended_by_the_next(small_set, tmp_path, monkeypatch):
    """At every file that it writes."""
    with_blobs(small_set)
    whole = dataset_of(tmp_path)
    count = len(export(small_set, whole))
    real = os.replace
    for cut in range(count):
        dataset = tmp_path / f"cut{cut}"
        (dataset / "definitions").mkdir(parents=True)
        calls = []

        def failing(*arguments, calls=calls, cut=cut):
            calls.append(arguments)
            if len(calls) > cut:
                raise OSError(5, "Input/output error")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            with pytest.raises(DerbyError, match="Input/output error"):
                export(small_set, dataset)
        export(small_set, dataset)
        assert {path.relative_to(dataset): path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == {
            path.relative_to(whole): path.read_bytes() for path in whole.rglob("*") if path.is_file()
        }


def test_a_text_with_a_marker_does_not_grow_the_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Title\n\n<!-- derby rank -->\n<!-- /derby -->\n\nrest\n")
    text = "a driver called\n<!-- /derby -->\n<!-- derby rank -->\nx"
    chosen = lambda found: (found[0], found[0].words)  # noqa: E731
    assert replace_block(page, "rank", text, chosen)
    once = page.read_bytes()
    assert not replace_block(page, "rank", text, chosen) and page.read_bytes() == once
    assert len(blocks(page, read_page(page))) == 1 and once.endswith(b"\n\nrest\n")


# ------------------------------------------------------------------------------------------------------- B.1 and B.4


def test_half_a_surrogate_pair_in_a_message_is_a_row_like_others(small_set):
    """An exception's text may hold one; JSON allows it, UTF-8 does not."""
    line = json.loads((small_set / TRACES).read_text().splitlines()[0])
    line["evaluation"]["log"] = "before \ud800 after"
    (small_set / TRACES).write_text(json.dumps(line) + "\n")
    rows = Catalog.open(small_set).traces()
    assert [row.message for row in rows] == ["before ? after"]


def test_a_file_of_rows_that_is_none(small_set):
    path = small_set / TRACES
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DerbyError, match="no regular file|cannot be written"):
        append_line(path, "{}")
    catalog = Catalog.open(small_set)
    assert catalog.traces() == [] and "no regular file" in catalog.warnings[0]


# ------------------------------------------------------------------------------------------------- found since then


@pytest.mark.parametrize("text", ["x" * 300, "x/" * 3000, "blob/" + "é" * 200])
def test_a_path_that_no_file_system_has(small_set, tmp_path, text):
    """Asking whether it is there raises, which ended `export` with a traceback."""
    edit_json(
        small_set / WORKLOADS,
        lambda line: line["workload"]["inputs"].update(x={"type": "safetensors", "path": text, "tensor_key": "x"}),
        line=0,
    )
    is_left_out(small_set, "longer than a path can be")
    (tmp_path / "dataset" / "definitions").mkdir(parents=True)
    assert run("export", tmp_path / "dataset", "--root", small_set).code in (0, 1)
    for words in (("export", text), ("list", "--root", text)):
        found = run(*words)
        assert found.code == 1 and "longer than a path can be" in found.err and found.err.count("\n") == 1


def test_a_profile_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for verb in ("kernels", "layers", "compare"):
        found = run("profile", verb, *[tmp_path / "pipe"] * (2 if verb == "compare" else 1))
        assert found.code == 1 and "it is no regular file" in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "--seeds", 10**30), "--seeds"),
        (("check", "--timeout", "nan"), "is no finite number"),
        (("check", "--timeout", 0), "--timeout"),
        (("bench", "--rounds", 10**30), "--rounds"),
        (("bench", "--timeout", "inf"), "is no finite number"),
        (("tune", "toy_fast", "--budget-seconds", "nan"), "is no finite number"),
        (("profile", "whatif", "x.csv", "--factor", "nan"), "is no finite number"),
        (("profile", "run", "--timeout", "-1"), "--timeout"),
    ],
)
def test_numbers_that_no_option_can_mean(small_set, words, said):
    found = run("--root", small_set, *words)
    assert found.code == 2 and said in found.err and not found.out


def test_what_the_file_system_says_is_one_line(small_set, monkeypatch):
    from kernelderby.catalog import Catalog

    def broken(*_):
        raise OSError(5, "Input/output error", "/some/place")

    monkeypatch.setattr(Catalog, "open", broken)
    found = run("list", "--root", small_set)
    assert found.code == 1 and found.err == "derby: /some/place: Input/output error; mend that place, or name another\n"
