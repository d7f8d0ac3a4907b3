"""A file and shapes that are not in the set: checked and measured beside it, kept only where that is asked for."""

from __future__ import annotations

import os

import pytest

import kernelderby
from kernelderby import DerbyError
from kernelderby.api import fenced_verbs
from kernelderby.api.adhoc import AdHoc
from kernelderby.catalog import Catalog
from kernelderby.measure.fence import landlock

pytest.importorskip("torch")


@pytest.fixture
def own(tmp_path, monkeypatch, derby):
    (tmp_path / "definitions").mkdir()
    (tmp_path / "mine.py").write_text(
        "import importlib, os\n\n__path__ = [os.path.dirname(__file__)]\n"
        'scaled = importlib.import_module(f"{__name__}.scaled")\n\n\ndef run(x):\n    return scaled.twice(x)\n'
        "\n\ndef wrong(x, y, z):\n    pass\n\n\ndef turned(output, x):\n    pass\n\n\ndef named(x, *, out):\n    pass\n"
    )
    (tmp_path / "scaled.py").write_text("def twice(x):\n    return x * 2\n")
    monkeypatch.chdir(tmp_path)
    derby("new", "operator", "twice", "x:f16[T,D]", "--run", "x * 2", "--size", "T=2,4", "--size", "D=16")
    return tmp_path


def test_a_file_is_checked_with_what_lies_beside_it(own, derby):
    code, out, err = derby("check", "mine.py", "--for", "twice", "--shape", "T=3,D=5")
    assert code == 0 and "T=3 D=5" in out, out + err
    (own / "scaled.py").write_text("def twice(x):\n    return x * 3\n")
    assert derby("check", "mine.py", "--for", "twice")[0] == 1
    assert not (own / "solutions").exists()  # nothing to pack, nothing left


def test_a_name_in_the_set_has_letters_of_every_locale(own):
    (own / "käfig ß.py").write_text("def run(x):\n    return x * 2\n")
    [result] = kernelderby.open(own).check("käfig ß.py", operator="twice", shapes="T=3,D=5").value
    assert (result.solution, result.status) == ("k_fig__", "passed")


def test_a_file_may_begin_with_the_mark_of_utf_8(own, derby):
    (own / "marked.py").write_text("def run(x):\n    return x * 2\n", encoding="utf-8-sig")
    code, out, err = derby("check", "marked.py", "--for", "twice", "--shape", "T=3,D=5")
    assert code == 0, out + err


def test_run_may_be_what_a_function_gave(own, derby):
    (own / "made.py").write_text("from functools import partial\n\nrun = partial(lambda by, x: x * by, 2)\n")
    code, out, err = derby("check", "made.py", "--for", "twice", "--shape", "T=3,D=5")
    assert code == 0, out + err


@pytest.mark.parametrize(
    "run",
    [
        "def run(x, by=2.0):\n    return (x * by).half()",  # a default where an output would stand
        "def run(x, output, by=2):\n    output.copy_(x * by)",
        "run = lambda x, output: output.copy_(x * 2)",
        "def run(x, /, output):\n    output.copy_(x * 2)\n\n\nrun = __import__('functools').partial(run)",
        "def run(*given):\n    return given[0] * 2",
    ],
)
def test_parameters_say_whether_it_writes_into_its_outputs(own, derby, run):
    (own / "entry.py").write_text(run + "\n")
    code, out, err = derby("check", "entry.py", "--for", "twice", "--shape", "T=3,D=5")
    assert code == 0, out + err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("5", "solution.toml: definition: must be"),
        ('["twice"]', "solution.toml: definition: must be"),
        ('"twise"', "solution.toml: definition: no operator 'twise'; did you mean twice?"),
    ],
)
def test_a_wrong_operator_beside_the_file_is_named_with_its_file(own, derby, written, said):
    (own / "solution.toml").write_text(f"definition = {written}\n")
    code, out, err = derby("check", "mine.py")
    assert (code, out) == (1, "") and said in err and err.count("\n") == 1


def test_a_row_with_another_end_of_line_in_a_text_is_kept_whole(small_set, tmp_path):
    """Once it was cut there, and two broken lines were all that stayed of it."""
    [path] = small_set.glob("traces/*/toy/*.jsonl")
    path.write_text(path.read_text().replace('"log": "', '"log": "a\u2028b\x85c', 1))
    home = Catalog(tmp_path / "home")
    definition = Catalog.open(small_set).definition("scale_rows_h4")
    [kept] = AdHoc(Catalog.open(small_set), home, definition, None, ()).keep_rows(record=False)
    assert kept.read_bytes() == path.read_bytes() and b"a\xe2\x80\xa8b" in kept.read_bytes()


TUNED = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import pow


@triton.autotune([triton.Config({"BLOCK": size}, num_warps=2) for size in (64, 128)], key=["count"])
@triton.jit
def kernel(x, output, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count).to(tl.float32)
    twice = libdevice.fast_logf(pow(libdevice.exp(value), 2.0))
    tl.store(output + at, (tl.where(libdevice.isnan(value) != 0, 0.0, twice)).to(tl.float16), mask=at < count)


def run(x, output):
    kernel[lambda chosen: (triton.cdiv(x.numel(), chosen["BLOCK"]),)](x, output, x.numel())
"""


def test_autotuned_kernels_and_libdevice_run_without_a_gpu(own, derby):
    pytest.importorskip("triton")
    (own / "tuned.py").write_text(TUNED)
    code, out, err = derby("check", "tuned.py", "--for", "twice", "--shape", "T=3,D=65")
    assert code == 0, out + err


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("import torch\n\ndef run(x):\n    torch.cuda.get_device_properties(0)", "its code asks for a GPU"),
        ("def run(x):\n    return x.mul_(2)", "declare it under [in_place] in solution.toml"),
    ],
)
def test_a_failure_has_its_mend(own, derby, run, said):
    (own / "fails.py").write_text(run + "\n")
    code, out, _ = derby("check", "fails.py", "--for", "twice", "--shape", "T=3,D=5")
    assert code == 1 and said in out, out


def test_a_shape_beyond_the_memory_is_a_failure_of_one_line(own, derby):
    code, out, err = derby("check", "mine.py", "--for", "twice", "--shape", "T=300000000,D=100000")
    assert code == 1 and "out_of_memory: the judge has no memory" in out, out + err


COMPILES = """
import subprocess

def run(x):
    subprocess.run(["sh", "-c", "echo warm; echo 'k.cpp:3:1: error: no such word' >&2; exit 2"], check=True{more})
"""


@pytest.mark.parametrize("more", ["", ", capture_output=True", ", capture_output=True, text=True"])
def test_what_a_compiler_says_is_told(own, derby, more):
    """Whether the solution takes its output or not."""
    (own / "compiles.py").write_text(COMPILES.replace("{more}", more))
    code, out, _ = derby("check", "compiles.py", "--for", "twice", "--shape", "T=3,D=5")
    told = " ".join(out.split())
    assert code == 1 and "CalledProcessError: sh ended with 2: k.cpp:3:1: error: no such word (compiles.py:5" in told
    assert "the same inputs again: derby check compiles.py --for twice --shape T=3,D=5 --secret" in told


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mine.py"], 1, "add --for OPERATOR"),
        (["none.py", "--for", "twice"], 1, "does not exist"),
        (["mine.py::wrong", "--for", "twice"], 1, "wrong() has 3 parameters; twice gives x"),
        (["mine.py::no", "--for", "twice"], 1, "has no no()"),
        (["mine.py::turned", "--for", "twice"], 1, "turned(output, x): is called by place; write turned(x, output)"),
        (["mine.py::named", "--for", "twice"], 1, "named() needs out by name; twice gives x; or these and output"),
        (["mine.py", "--for", "twice", "--shape", "T=3", "D=4"], 2, "D=4: is no name; write sizes with commas"),
        (["broken.py", "--for", "twice"], 1, "broken.py:2: invalid syntax; mend it"),
        (["scaled.py::one", "--for", "twice"], 1, "one() has 0 parameters"),
        (["empty.py", "--for", "twice"], 1, "has no run(); add run(x)"),
        (["k.cu", "--for", "twice"], 1, "k.cu: is no FILE.py; `derby new solution"),
        (["./definitions", "--for", "twice"], 1, "is a folder; name a FILE.py"),
        (["mine.py", "--for", "twice", "--shape", "T=3"], 1, "lacks D; write T=64,D=64"),
        (["mine.py", "--for", "twice", "--shape", "T=3,E=4"], 1, "no axis 'E'"),
        (["mine.py", "--for", "twice", "--shape", "T=3,T=4,D=4"], 1, "T stands twice; leave one out"),
        (["mine.py", "--for", "twice", "--shape", f"T={'9' * 99},D=4"], 1, "is no size; write a whole number below"),
        (["mine.py", "--for", "twise"], 1, "did you mean twice"),
        (["--shape", "T=3,D=4"], 2, "goes with"),
        (["--for", "twice"], 2, "goes with a FILE.py"),
    ],
)
def test_a_slip_is_one_line(own, derby, words, code, said):
    (own / "broken.py").write_text("def run(x):\n    return x +\n")
    (own / "scaled.py").write_text("def one():\n    pass\n")
    for name in ("empty.py", "k.cu"):
        (own / name).touch()
    found, _, err = derby("check", *words)
    assert found == code and said in " ".join(err.split())


@pytest.mark.parametrize(("place", "words"), [("reports", []), ("workloads", ["--record"])])
def test_rows_that_cannot_be_kept_are_not_measured(own, derby, monkeypatch, place, words):
    (own / "reports").mkdir()
    access = os.access  # root may write everywhere
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (str(path).endswith(place) and mode & os.W_OK) and access(path, mode)
    )
    code, out, err = derby("bench", "mine.py", "--for", "twice", "--device", "cpu", *words)
    assert (code, out) == (1, "") and f"{place}, or give another folder" in err


def test_a_kernel_that_a_cpu_does_not_time_is_told_so(own, derby):
    """Not measured in silence beside the others."""
    (own / "kernel.py").write_text("import triton\n\n\ndef run(x):\n    return x * 2\n")
    code, out, err = derby("bench", "kernel.py", "--for", "twice", "--device", "cpu")
    assert (code, out) == (1, "") and "times plain Python alone, and kernel is Triton" in err
    with pytest.raises(DerbyError, match="kernel is Triton"):
        kernelderby.open(own).bench("kernel.py", operator="twice", device="cpu")
    derby("new", "solution", "slow", "--for", "twice")
    code, _, err = derby("bench", "--solutions", "slow", "--device", "cpu")
    assert code == 1 and "times plain Python alone, and slow is Triton" in err


def test_a_shape_of_the_api_may_be_a_dict(own, monkeypatch):
    """Each form asks the same of the command, so one of them is checked."""
    asked, words, answered = kernelderby.open(own), [], []
    verb_json = fenced_verbs.verb_json

    def told(given, *rest):
        words.append(given)
        if not answered:
            answered.append(verb_json(given, *rest))
        return answered[0]

    monkeypatch.setattr(fenced_verbs, "verb_json", told)
    for shapes in ({"T": 3, "D": 5}, [{"T": 3, "D": 5}], "T=3,D=5"):
        [result] = asked.check("mine.py", operator="twice", shapes=shapes).value
        assert result.case.startswith("T=3 D=5 ") and result.status == "passed"
    assert words[0] == words[1] == words[2]


def test_rows_are_kept_apart_until_they_are_recorded(own, derby):
    words = ("--device", "cpu", "--shape", "T=3,D=8", "--rounds", "1", "--most-rounds", "1")
    code, out, err = derby("bench", "mine.py", "--for", "twice", *words)
    assert code == 0 and "twice_reference" in out and "mine" in out, out + err
    assert "Each workload" in out  # the ranking, at once
    assert list((own / "reports/bench/traces/cpu").rglob("twice.jsonl")) and not (own / "traces").exists()
    assert derby("bench", "mine.py", "--for", "twice", *words, "--record")[0] == 0
    catalog = Catalog.open(own, strict=True)
    assert "mine" in catalog.solutions and len(catalog.traces("twice")) == 2
    assert [each.axes["D"] for each in catalog.workloads("twice")] == [16, 16, 8]
    assert derby("rank", "twice")[0] == 0
    assert derby("bench", "--record", "--device", "cpu")[0] == 2


LOCKS = """
import fcntl, struct

OPENED = []
for place in {places}:
    try:
        OPENED.append(open(place))
    except PermissionError:
        continue
    fcntl.fcntl(OPENED[-1], 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1 << 48, 0))
assert not OPENED


def run(x):
    return x * 2
"""


@pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no landlock")
def test_a_file_neither_reads_nor_locks_the_rows_of_the_set_beside_which_it_is_measured(own, derby):
    rows = ["traces/cpu/a/twice.jsonl", "reports/bench/traces/cpu/a/twice.jsonl", "reports/tune/mine.jsonl"]
    for place in (own / each for each in ("readable", *rows)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    for places, code in (([own / each for each in rows], 0), ([own / "readable"], 1)):
        (own / "mine.py").write_text(LOCKS.format(places=[*map(str, places)]))
        assert derby("check", "mine.py", "--for", "twice")[0] == code
    (own / "mine.py").write_text(LOCKS.format(places=[str(own / each) for each in rows]))
    found = kernelderby.open(own).bench("mine.py", operator="twice", device="cpu", rounds=1, most_rounds=1)
    assert "mine" in found.value[0].order, "its set has been made by another process than its runner"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "twice_reference"], "twice_reference is a solution of twice; name the operator"),
        (["explain", "twice"], "twice is an operator; name a solution of it, such as twice_reference"),
        (["gate", "mine.py", "twice_reference"], "mine.py: check and bench alone take a file; `derby new solution`"),
        (["explain", "twise"], "no solution 'twise'; known: twice_reference"),
        (["rank", "twice", "--shape", "T=3"], "`derby bench --for twice --shape T=3,D=16` measures it"),
    ],
)
def test_a_name_of_another_kind_is_told_as_such(own, derby, words, said):
    code, _, err = derby(*words)
    assert code == 1 and said in " ".join(err.split()) and err.count("\n") == 1
