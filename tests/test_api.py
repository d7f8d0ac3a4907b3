"""import kernelderby: its exports, its weight, its answers; and docs/api.md, run as it stands."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from inspect import Parameter, signature
from io import StringIO

import pytest

import kernelderby
from kernelderby import DerbyError

D = "scale_rows_h4"


def test_the_exported_names():
    assert kernelderby.__all__ == [
        "Answer",
        "DerbyError",
        "Frame",
        "ProfileFile",
        "TraceSet",
        "__version__",
        "counters",
        "doctor",
        "layers",
        "open",
        "profile",
    ]
    assert set(dir(kernelderby)) == set(kernelderby.__all__)
    for name in kernelderby.__all__:
        assert getattr(kernelderby, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = kernelderby.opne


@pytest.mark.parametrize("statement", ["import kernelderby", "from kernelderby import *"])
def test_importing_it_is_light(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"torch", "triton", "rich", "pandas", "click", "matplotlib"}
    assert not loaded & (heavy if "*" in statement else heavy | {"numpy", "kernelderby.catalog"})


def test_an_answer_does_not_load_torch(checkout):
    code = (
        "import kernelderby, sys\nkernelderby.open(sys.argv[1]).rank().to_csv()\n"
        "assert not {'torch', 'triton', 'pandas', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(checkout)], check=True)


@pytest.mark.parametrize(
    "first", ["import kernelderby.profile.spans", "from kernelderby.profile import spans", "import kernelderby"]
)
def test_profile_is_a_package_and_a_question(checkout, first):
    code = (
        f"{first}\nimport kernelderby, sys\nassert kernelderby.profile(sys.argv[1]).path.name\n"
        "import kernelderby.profile.compare.kernels\nassert kernelderby.profile.compare.kernels.compare_kernels"
    )
    subprocess.run([sys.executable, "-c", code, str(checkout / "profiles/triton_fused_v2_b200.csv")], check=True)


def test_a_set_has_definitions_workloads_solutions_and_rows(small_set):
    found = kernelderby.open(small_set)
    assert list(found.definitions) == list(found.workloads) == [D]
    assert list(found.solutions) == ["toy_fast", "toy_baseline"] and len(found.rows) == 4
    assert [workload.axes["rows"] for workload in found.workloads[D]] == [2, 1000]
    with pytest.raises(DerbyError, match="no trace set"):
        kernelderby.open(small_set / "traces")


def test_rank_is_what_the_command_says(derby, small_set):
    answer = kernelderby.open(small_set).rank(D, baseline="toy_baseline")
    out = derby("rank", "--definitions", D, "--baseline", "toy_baseline", "--json", "--root", small_set)[1]
    assert json.loads(out) == json.loads(answer.to_json())
    assert derby("rank", "--baseline", "toy_baseline", "--root", small_set, columns=100)[1] == answer.to_text(100)
    [ranking] = answer.value
    assert ranking.order == ("toy_fast", "toy_baseline")
    with pytest.raises(FrozenInstanceError):
        answer.value = ()
    with pytest.raises(FrozenInstanceError):
        ranking.order = ()


def test_what_a_notebook_may_give_for_names(small_set):
    found = kernelderby.open(small_set)
    both = found.rank(D).to_text()
    assert all(found.rank(name).to_text() == both for name in (None, (), [D], (D,), {D}, iter([D])))
    assert len(found.rank(D, workloads=1000).value[0].rows) == len(found.rank(D, workloads=["1000"]).value[0].rows) == 1
    assert repr(found) == f"TraceSet({str(small_set)!r})"
    for ask, words in (
        (
            lambda: found.rank([3.5]),
            r"rank: definitions=\[3.5\] has the wrong type; give str or int or a dict or a list of str or",
        ),
        (lambda: found.rank(True), "definitions=True has"),
        (lambda: found.rank(iter([None])), "None is no name"),
        (lambda: found.rank(D, time="fast"), "time: 'fast' is unknown; known: busy, eager, graph"),
        (lambda: found.rank(7), "no operator '7'"),
        (lambda: found.roofline(gpu=3), "no '3'"),
    ):
        with pytest.raises(DerbyError, match=words):
            ask()


STRANGE = {
    5.5: "float",
    b"x": "-",
    object: "-",
    (None,): "-",
    True: "bool",
    -1: "int|Names",
    print: "-",
}  # who takes it


def test_a_wrong_type_is_one_line(small_set, checkout):
    """For every argument of every question, at the question itself, not somewhere below."""
    recording = kernelderby.profile(checkout / "profiles/triton_fused_v2_b200.csv")
    needed = {
        "config": "qwen3-32b",
        "operator": D,
        "shape": "n=1",
        "solution": "toy_fast",
        "after": recording,
        "base": "a",
        "candidate": "b",
    }
    questions = [kernelderby.open, kernelderby.counters, kernelderby.layers, kernelderby.doctor]
    for each in (kernelderby.open(small_set), recording):
        questions += [getattr(each, name) for name in dir(type(each)) if name[0] != "_"]
    asked = 0
    for question in filter(callable, questions):
        takes = signature(question).parameters.values()
        for name, kind, annotation in ((each.name, each.kind, str(each.annotation)) for each in takes):
            given = {each.name: needed[each.name] for each in takes if each.name in needed}
            for strange in (each for each, fits in STRANGE.items() if not re.search(fits, annotation)):
                if kind is not Parameter.VAR_KEYWORD:
                    several = kind is Parameter.VAR_POSITIONAL
                    with pytest.raises(DerbyError, match=f"{name}=.* has the wrong type; give "):
                        question(*([strange] if several else []), **({} if several else {**given, name: strange}))
                    asked += 1
    assert asked > 250


@pytest.mark.parametrize("factors", [[0], [1], [-2], [float("nan")], [float("inf")]])
def test_what_no_stage_can_gain(checkout, factors):
    recording = kernelderby.profile(checkout / "profiles/triton_fused_v2_b200.csv")
    assert repr(recording).startswith("ProfileFile(")
    with pytest.raises(DerbyError, match="factors: .* is no number above 1"):
        recording.whatif("triton_fused_v2", checkout, factors=factors)
    with pytest.raises(DerbyError, match="floors_us: "):
        recording.whatif("triton_fused_v2", checkout, floors_us={"K1": -1})


def test_csv_is_tidy(small_set):
    answer = kernelderby.open(small_set).rank()
    rows = list(csv.DictReader(StringIO(answer.to_csv(table="workloads"))))
    assert [(row["solution"], row["axes_rows"], row["latency_us"]) for row in rows] == [
        ("toy_fast", "2", "4.0"),
        ("toy_baseline", "2", "8.0"),
        ("toy_fast", "1000", "4.0"),
        ("toy_baseline", "1000", "8.0"),
    ]
    assert [row["rank"] for row in csv.DictReader(StringIO(answer.to_csv()))] == ["1", "2"]
    with pytest.raises(DerbyError, match="there is no 'shapes'; there are solutions, workloads, pairs"):
        answer.to_csv(table="shapes")


def test_csv_goes_into_a_file(small_set, tmp_path):
    answer = kernelderby.open(small_set).roofline()
    assert answer.to_csv(tmp_path / "a.csv", "shapes") == (tmp_path / "a.csv").read_text()
    with pytest.raises(DerbyError, match="cannot be written"):
        answer.to_csv(tmp_path / "none" / "a.csv")


def test_workloads_are_named_by_uuid_size_and_axis(small_set):
    found = kernelderby.open(small_set)
    uuid = found.workloads[D][1].uuid
    for words in ("1000", "rows=1000", uuid, uuid[:6], ["1000", uuid]):
        [ranking] = found.rank(workloads=words).value
        assert [row.axes["rows"] for row in ranking.rows] == [1000]
    with pytest.raises(DerbyError, match="no workload '9'"):
        found.rank(workloads="9")


def test_frames_of_pandas_are_the_csv(small_set):
    pandas = pytest.importorskip("pandas")
    answer = kernelderby.open(small_set).rank()
    for name in answer.frames:
        frame, read = answer.to_pandas(name), pandas.read_csv(StringIO(answer.to_csv(table=name)))
        assert list(frame.columns) == list(read.columns) and len(frame) == len(read)
    assert answer.to_pandas("workloads")["latency_us"].tolist() == [4.0, 8.0, 4.0, 8.0]


def test_without_pandas_it_is_one_line(small_set, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DerbyError, match=re.escape("pandas is missing; pip install 'kernelderby[pandas]'")):
        kernelderby.open(small_set).rank().to_pandas()


def test_a_recording_answers_stages_and_whatif(checkout):
    published = checkout / "profiles/triton_fused_v2_b200.csv"
    recording = kernelderby.profile(published)
    assert recording.gpu == "NVIDIA B200" and recording.path == published
    [pipeline] = recording.stages("triton_fused_v2", checkout).value
    assert pipeline.invocations == 1949
    stages = list(csv.DictReader(StringIO(recording.stages("triton_fused_v2", checkout).to_csv())))
    assert stages[0]["stage"] == "K1" and float(stages[0]["us_per_invocation"]) == pytest.approx(21.8, abs=0.01)
    [found] = recording.whatif("triton_fused_v2", checkout, factors=[2]).value
    assert found.factors == (2,)
    assert recording.compare(recording).value.ratio == 1
    assert "kernels" in recording.kernels().frames
    with pytest.raises(DerbyError, match="none.sqlite"):
        kernelderby.profile("none.sqlite")


def examples(checkout):
    return re.findall(r"^```python\n(.*?)^```", (checkout / "docs/api.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_pages_examples_run(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    blocks = examples(checkout)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        if "to_pandas" not in block:
            exec(block, names)
    assert "derby_moe_sm90" in capsys.readouterr().out


def test_the_pages_examples_with_pandas_run(checkout, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(checkout)
    names: dict = {}
    for block in examples(checkout):
        exec(block, names)
    assert "share_of_floor" in capsys.readouterr().out


def test_a_notebook_gets_what_the_command_prints(derby, small_set):
    trace_set = kernelderby.open(small_set)
    for answer, words in (
        (trace_set.operators(), ("list",)),
        (trace_set.show(D), ("show", D)),
        (kernelderby.doctor(small_set), ("doctor",)),
    ):
        code, out, _ = derby(*words, "--root", small_set, "--json")
        assert code == 0 and json.loads(out) == json.loads(answer.to_json()), words


def test_records_tell_what_they_are_in_a_line(small_set):
    found = kernelderby.open(small_set)
    named = "scale_rows_h4"
    answers = (found.rank(named), found.show(named), found.roofline(named), found.operators(), found.field(named))
    records = [*found.definitions.values(), *found.solutions.values(), *found.workloads[named], *found.rows]
    for record in (*records, found.nearest(named, "rows=8"), *(answer.value for answer in answers)):
        assert len(repr(record)) < 160, repr(record)[:200]


def test_a_file_and_shapes_of_ones_own(small_set, tmp_path):
    pytest.importorskip("torch")
    found = kernelderby.open(small_set)
    (tmp_path / "mine.py").write_text(
        (small_set / "solutions/baseline/toy/scale_rows_h4/toy_baseline/main.py").read_text()
    )
    mine = str(tmp_path / "mine.py")
    answer = found.check(mine, operator="scale_rows_h4", shapes=["rows=3"], device="cpu")
    assert [each.status for each in answer.value] == ["passed"] and "rows=3" in answer.value[0].case
    ranked = found.bench(
        mine, operator="scale_rows_h4", shapes=["rows=3"], device="cpu", rounds=1, most_rounds=1, iterations=2
    )
    assert {"mine", "toy_baseline"} <= {*ranked.value[0].order} and not (small_set / "traces/cpu").exists()
    assert (small_set / "reports/bench/traces/cpu").is_dir()
    with pytest.raises(DerbyError, match="goes with a FILE.py or shapes"):
        found.check(operator="scale_rows_h4")
