"""From rows to a package's dispatch table, and the loss on shapes left out."""

import os
from types import SimpleNamespace

import pytest

from kernelderby.catalog import Catalog, Requires, Solution
from kernelderby.deploy.winners import HeldOutShapes, TimedShape, _kept, _loss, choosing_axes, kind_of, winners
from kernelderby.errors import DerbyError

AXES = SimpleNamespace(axes={"tokens": None, "width": 4096}, constraints=(), inputs=())


def solution(name, author="someone", **other):
    fields = {
        "definition": "operator",
        "op_type": "norm",
        "language": "triton",
        "entry_point": "main.py::run",
        "destination_passing_style": True,
        "description": "",
        "folder": None,
        "json_path": None,
        "sources": {"main.py": ""},
        "requires": Requires(),
        "stages": (),
    }
    return Solution(name=name, author=author, **{**fields, **other})


OURS = solution("ours")
THEIRS = solution("theirs", "vllm", language="python", dependencies=("vllm",))
TORCH = solution("plain", "baseline", language="python")
SOLUTIONS = (OURS, THEIRS, TORCH)


def shapes(**times):
    """shapes(ours=[1, 2]) at 1, 2, 4 ... tokens."""
    count = len(next(iter(times.values())))
    return [TimedShape((2**place,), {name: own[place] for name, own in times.items()}) for place in range(count)]


def test_a_solution_is_own_library_or_plain():
    assert [kind_of(each) for each in SOLUTIONS] == ["own", "library", "plain"]


def test_what_each_shape_loses_when_the_others_choose_for_it():
    """In the middle the library is faster by a fifth; its neighbours choose ours there. At the ends they agree."""
    found = _loss(AXES, SOLUTIONS, shapes(ours=[1.0, 1.2, 1.0], theirs=[2.0, 1.0, 2.0]), [])
    assert (found.inside, found.outside) == (3, 0)
    assert found.worst == pytest.approx(0.2) and found.mean == pytest.approx((0 + 0.2 + 0) / 3)


def test_a_shape_beyond_the_others_is_counted_apart_with_the_librarys_loss():
    known = shapes(ours=[1.0, 1.0, 1.0, 1.0], theirs=[2.0, 2.0, 2.0, 3.0])
    found = _loss(AXES, SOLUTIONS, [known[0], known[1], TimedShape((2**18,), known[3].us)], [])
    assert (found.inside, found.outside) == (2, 1)
    assert found.mean == 0 and found.outside_mean == pytest.approx(2.0)


def test_fresh_shapes_are_chosen_for_by_all_and_choose_for_none():
    known = shapes(ours=[1.0, 1.0], theirs=[2.0, 2.0])
    found = _loss(AXES, SOLUTIONS, known, [TimedShape((2,), {"ours": 1.5, "theirs": 1.0})])
    assert found.held_out == {"fresh": HeldOutShapes(1, pytest.approx(0.5), 0, 0, 1)} and found.mean == 0


def test_a_shape_without_a_time_of_the_choice_tells_no_loss():
    """Neither the loss of the fastest that has a time there, nor none."""
    known = shapes(ours=[1.0, 1.0, 1.0], theirs=[2.0, 2.0, 2.0])
    del known[1].us["ours"]
    found = _loss(AXES, SOLUTIONS, known, [TimedShape((3,), {"theirs": 5.0, "plain": 1.0})])
    assert (found.inside, found.untimed, found.mean) == (2, 1, 0)
    assert found.held_out == {"fresh": HeldOutShapes(1, None, 1, 0, 0)}


def test_shapes_of_one_origin_are_held_out_together():
    """Ours is faster on the survey's shapes, the library on those of models, which the survey's would give to us."""
    survey = [TimedShape((2**place,), {"ours": 1.0, "theirs": 2.0}, "survey") for place in (0, 2, 4)]
    models = [TimedShape((size,), {"ours": 1.2, "theirs": 1.0}, "models") for size in (2, 8)]
    outside = TimedShape((2**21,), {"ours": 1.0, "theirs": 1.1}, "models")  # where a library runs
    held = _loss(AXES, SOLUTIONS, [*survey, *models, outside], []).held_out
    assert held == {"models": HeldOutShapes(3, pytest.approx((0.2 + 0.2 + 0.1) / 3), 0, 1, 0)}


def test_a_held_out_shape_is_chosen_for_by_its_twin_of_another_origin():
    """The survey measured these sizes with another routing: a package knows them, so no library runs."""
    survey = [TimedShape((size,), {"ours": 1.0, "theirs": 2.0}, "survey") for size in (1, 4096)]
    served = [TimedShape((4096,), {"ours": 3.0, "theirs": 4.0}, "serving")]
    assert _loss(AXES, SOLUTIONS, [*survey, *served], []).held_out == {"serving": HeldOutShapes(1, 0.0, 0, 0, 1)}


def test_axes_that_follow_and_pools_do_not_choose(catalog):
    axes = {name: choosing_axes(catalog.definition(name)) for name in ("block_scaled_mm", "fp8_blockscale_fused_moe")}
    assert axes["block_scaled_mm"] == ["m", "n", "k"]
    experts = ["num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k"]
    assert axes["fp8_blockscale_fused_moe"] == experts  # gate_up_size follows, and its blocks from it
    paged = choosing_axes(catalog.definition("unified_attention"))
    assert not {"num_blocks", "len_cu_seqlens"} & {*paged} and "max_blocks_per_seq" in paged
    assert choosing_axes(catalog.definition("moe_align_block_size")) == ["num_tokens", "num_blocks"]  # of its output
    assert "bias_rows" in choosing_axes(catalog.definition("gemm_bf16"))  # its constraint is no equality


def test_shapes_of_the_same_sizes_are_left_out_together():
    twins = [TimedShape((8,), {"ours": 1.0, "theirs": 2.0}), TimedShape((8,), {"ours": 1.0, "theirs": 2.0})]
    assert _loss(AXES, SOLUTIONS, twins, []).outside == 2


def test_the_fastest_library_and_the_fastest_own_one_travel_too():
    slow = solution("slow")
    own = {each.name: each for each in (*SOLUTIONS, slow)}
    assert _kept(shapes(ours=[2.0], theirs=[1.0], slow=[3.0], plain=[9.0]), own) == {"ours", "theirs"}


def test_the_plan_builds_nothing_and_says_what_the_choice_loses(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from kernelderby.cli import derby
    from tests.conftest import CHECKOUT

    words = ["export", "--plan", "--gpu", "h200", "--definitions", "mrope", "--root", str(CHECKOUT)]
    result = CliRunner().invoke(derby, words)
    assert result.exit_code == 0, result.output
    assert "Nothing is built" in result.output and "fresh not measured yet" in " ".join(result.output.split())
    result = CliRunner().invoke(derby, ["export", "--wheel", "--root", str(CHECKOUT)])
    assert result.exit_code == 2 and "--plan alone needs none" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--wheel", "--trace-apply", "dist"], 2, "--wheel, --hf-kernels and --trace-apply: one package at a time"),
        (["--wheel", "a_file", "--definitions", "rms_norm"], 1, "a_file: is no folder; mend or remove it"),
        (["--hf-kernels", "a_file/below", "--definitions", "rms_norm"], 1, "a_file: is no folder; mend or remove it"),
        (["--trace-apply", "closed/dist"], 1, "closed/dist: cannot be written to; mend the permissions of"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_compiled(tmp_path, monkeypatch, words, code, said):
    from click.testing import CliRunner

    from kernelderby.api import deploy
    from kernelderby.cli import derby
    from tests.conftest import CHECKOUT

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    (tmp_path / "closed").mkdir()
    access = os.access  # root may write everywhere
    monkeypatch.setattr(
        os, "access", lambda path, mode: not ("closed" in str(path) and mode & os.W_OK) and access(path, mode)
    )
    monkeypatch.setattr(deploy, "winners", lambda *_: pytest.fail("too late"))
    result = CliRunner().invoke(derby, ["export", *words, "--root", str(CHECKOUT)])
    assert result.exit_code == code and said in " ".join(f"{result.output} {result.exception}".split()), result.output
    assert not (tmp_path / "dist").exists()


def test_operators_that_one_reason_leaves_out_stand_in_one_note(catalog):
    from kernelderby.report.deploy import planned_answer

    [report] = planned_answer(winners(catalog, list(catalog.definitions.values()), "h100")).make_reports()
    [told] = [
        note for note in report.notes if note.startswith("not in the package, no shape has times of two solutions")
    ]
    assert ": silu_and_mul, " in told and "rms_norm" in told


def test_operators_without_rows_are_named(catalog, monkeypatch):
    monkeypatch.setattr(catalog, "traces", lambda *_, **__: [])
    with pytest.raises(DerbyError, match="^rms_norm: no recorded rows"):
        winners(catalog, [catalog.definition("rms_norm")])


def test_a_set_without_times_of_graphs_has_no_winners(small_set):
    catalog = Catalog.open(small_set)
    with pytest.raises(DerbyError, match="no rows to choose by"):
        winners(catalog, list(catalog.definitions.values()))


def test_a_solution_with_a_setup_is_passed_over_with_the_reason(catalog):
    name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    [found] = winners(catalog, [catalog.definition(name)], "h200").operators
    assert found.left_out["hpc_ops_moe"] == "needs a setup()"
    assert "hpc_ops_moe" not in {each.name for each in found.solutions}
    assert sum(found.fastest.values()) == len(found.shapes) > 0
