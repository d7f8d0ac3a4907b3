"""Words that mean the same in every verb: several names, --root before or after, workloads, empty paths."""

import json
import resource
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kernelderby.catalog import Catalog
from kernelderby.catalog.selection import select_workloads
from kernelderby.cli.options import DerbyCommand, solutions_option

D = "scale_rows_h4"
VERBS = {"rank": (), "bench": (), "check": (), "profile run": ()}


@click.command(cls=DerbyCommand)
@click.argument("first", nargs=-1)
@solutions_option
@click.option("--rounds", type=int, default=5)
def command(first, solutions, rounds):
    click.echo(f"{first} {solutions} {rounds}")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", "() () 5"),
        ("--solutions a,b --rounds 3", "() ('a', 'b') 3"),
        ("--solutions a --solutions b", "() ('a', 'b') 5"),
        ("--solution a,a x", "('x',) ('a',) 5"),
        ("--solutions a b", "('b',) ('a',) 5"),
        ("--solutions=a,b y", "('y',) ('a', 'b') 5"),
    ],
)
def test_an_option_takes_one_value_and_may_be_repeated(words, shown):
    assert CliRunner().invoke(command, words.split()).output.strip() == shown


@pytest.mark.parametrize("words", [["--solutions", "a,,b"], ["--solutions", ""], ["--solutions"]])
def test_an_empty_name_is_an_error(words):
    assert CliRunner().invoke(command, words).exit_code == 2


@pytest.mark.parametrize("verb", VERBS)
def test_the_selecting_options_are_the_same_in_every_verb(derby, verb):
    out = derby(*verb.split(), "--help")[1]
    for option in (
        "--definitions, --definition D[,D]",
        "--solutions, --solution S[,S]",
        "--workloads, --workload W[,W]",
    ):
        assert option in out


@pytest.mark.parametrize("verb", ["list", "show", "rank", "roofline", "check", "bench", "tune"])
def test_what_tables_or_measures_takes_an_origin(derby, verb):
    assert "--origin O[,O]" in derby(verb, "--help")[1]


def test_a_second_bare_name_says_how_several_are_written(derby, small_set):
    pytest.importorskip("torch")  # of bench
    code, out, err = derby("bench", "--solutions", "toy_fast", "toy_baseline", "--root", small_set)
    assert code == 2 and out == "" and "write several as a,b or repeat it" in err
    for word, option in (("toy_fast", "--solutions"), (D, "--definitions")):
        assert f"is no FILE.py; write {option} {word}" in " ".join(derby("bench", word, "--root", small_set)[2].split())
    code, out, err = derby("rank", "--solutions", "toy_fast", "toy_baseline", "--root", small_set)
    assert code == 1 and out == ""
    assert err == "derby: toy_baseline is a solution, not an operator; write --solutions toy_fast,toy_baseline\n"


def test_rank_takes_operators_bare(derby, small_set):
    named = derby("rank", "--definitions", D, "--root", small_set, "--json")
    assert named[0] == 0 and derby("rank", D, "--root", small_set, "--json") == named
    assert "no operator" in derby("rank", "no_such", "--root", small_set)[2]


def test_no_positional_name_is_swallowed(derby, small_set):
    code, out, _ = derby("roofline", "--gpu", "h200", D, "--root", small_set, "--json")
    assert code == 0 and list(json.loads(out)["operators"]) == [D]
    code, _, err = derby("roofline", "--gpu", "h20", "xpu-a", "--root", small_set)
    assert code == 1 and err == "derby: xpu-a is a GPU, not an operator; write --gpu h20,xpu-a\n"
    assert derby("roofline", "--gpu", "h200", "--definitions", D, "--root", small_set, "--json")[1] == out


@pytest.mark.parametrize(("before", "after"), [(["--root"], []), ([], ["--root"])])
def test_root_stands_before_or_after_the_verb(derby, small_set, tmp_path, monkeypatch, before, after):
    monkeypatch.chdir(tmp_path)
    words = [[*option, *([small_set] if option else [])] for option in (before, after)]
    assert derby(*words[0], "list", *words[1])[0] == 0
    error = derby(*words[0], "profile", *words[1], "stages", "none.csv", "--solution", "toy")[2]
    assert "did you mean toy_fast?" in error, "of that set"


def test_root_of_the_group_reaches_the_verbs_below_it(derby, small_set, checkout, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = checkout / "profiles/triton_fused_v2_b200.csv"
    for words in (
        ["--root", checkout, "profile", "stages"],
        ["profile", "--root", checkout, "stages"],
        ["--root", small_set, "profile", "stages", "--root", checkout],
    ):
        assert derby(*words, file, "--solution", "triton_fused_v2")[0] == 0


def test_the_variable_names_a_set_and_the_option_comes_first(derby, small_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DERBY_ROOT", str(small_set))
    assert D in derby("list")[1]
    code, _, err = derby("list", "--root", tmp_path)
    assert code == 1 and "no trace set" in err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["export", ""], "DESTINATION"),
        (["shapes", ""], "CONFIG.json|NAME"),
        (["list", "--root", ""], "--root"),
        (["profile", "kernels", ""], "FILE"),
        (["roofline", "--write", ""], "--write"),
        (["roofline", "--traces", "--plot", ""], "--plot"),
    ],
)
def test_an_empty_path_is_an_error_of_one_line(derby, small_set, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(small_set)
    code, out, err = derby(*words)
    assert (code, out, err) == (1, "", f"derby: {name}: is empty; give a path (is a variable not set?)\n")
    assert not (tmp_path / "definitions").exists()


@pytest.mark.parametrize("verb", ["check", "bench"])
def test_a_solution_of_another_operator_is_no_choice_of_nothing(derby, checkout, verb):
    pytest.importorskip("torch")  # of bench
    words = ("--solutions", "torch_rms_norm", "--definitions", "silu_and_mul", "--device", "cpu", "--root", checkout)
    code, out, err = derby(verb, *words)
    assert (code, out) == (1, "")
    assert err == "derby: torch_rms_norm is a solution of rms_norm, not of silu_and_mul; leave one out\n"


def test_bounds_of_the_shell_are_named_as_such(derby, monkeypatch):
    assert derby("list", "--bounds", "time=x")[2].startswith("derby: --bounds: time=x is no bound;")
    monkeypatch.setenv("DERBY_BOUNDS", "time=x")
    assert derby("list")[2].startswith("derby: $DERBY_BOUNDS: time=x is no bound;")


def test_words_for_workloads(checkout):
    shapes = Catalog.open(checkout).workloads("rms_norm")
    third = next(shape for shape in shapes if shape.raw["shape_id"] == 3)
    for word in ("#3", "shape_id=3", third.uuid, third.uuid[:8]):
        assert select_workloads(shapes, [word]) == [third]
    attention = Catalog.open(checkout).workloads("unified_attention")
    assert [shape.uuid[:8] for shape in select_workloads(attention, ["51443895"])] == ["51443895"]  # digits alone
    axis, size = next(iter(third.axes.items()))
    chosen = select_workloads(shapes, [f"{axis}={size}"])
    assert third in chosen and all(shape.axes[axis] == size for shape in chosen)


def test_rank_takes_workloads(derby, small_set):
    code, out, _ = derby("rank", "--workloads", "rows=1000", "--root", small_set, "--json")
    [ranking] = json.loads(out)["rankings"]
    assert code == 0 and [row["axes"]["rows"] for row in ranking["rows"]] == [1000]
    code, _, err = derby("rank", "--workloads", "9", "--root", small_set)
    assert code == 1 and "no workload '9'" in err


@pytest.mark.parametrize("module", ["kernelderby", "kernelderby.cli"])
def test_it_runs_as_a_module(module, small_set):
    done = subprocess.run([sys.executable, "-m", module, "--root", small_set, "list"], capture_output=True, text=True)
    assert done.returncode == 0 and D in done.stdout


def test_help_is_quick():
    """0.07 s, most of which Python and click take: numpy or rich would double it. Of the processor, since other tests
    may run beside it, and beside Python and click alone, since machines differ."""

    def seconds(*words):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    taken = [(seconds("-m", "kernelderby", "--help"), seconds("-c", "import click")) for _ in range(7)]
    of_help, of_click = map(min, zip(*taken, strict=True))
    assert of_help < 2 * of_click, taken
