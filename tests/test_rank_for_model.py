"""The kernels for a model: the rules' shapes, the nearest measured ones, the fastest solution and library there."""

from __future__ import annotations

import json

import pytest

import kernelderby
from kernelderby.errors import DerbyError
from kernelderby.shapes import standing

ASKED = ("--model", "qwen3-32b", "--tp", 4, "--tokens", "1,64,4096")


@pytest.fixture(scope="module")
def shapes(checkout):
    return kernelderby.open(checkout).rank_for_model("qwen3-32b", sharing=4, tokens=[1, 64, 4096]).value.shapes


def test_every_shape_that_the_model_implies_has_a_row(shapes, derby, checkout):
    listed = json.loads(derby("shapes", "qwen3-32b", *ASKED[2:], "--json", "--root", checkout)[1])["shapes"]
    assert sorted(each.operator for each in shapes) == sorted(each["definition"] for each in listed)


def test_a_row_is_what_rank_tells_of_the_nearest_shape(shapes, checkout):
    found = kernelderby.open(checkout)
    for operator in ("silu_and_mul", "gemm_bf16", "unified_attention"):
        one = next(each for each in shapes if each.operator == operator)
        near = found.nearest(operator, one.shape)
        assert (one.workload, one.away) in [(each.uuid, round(2**away, 3)) for each, away in near.workloads]
        (ranking,) = found.rank(operator, workloads=one.workload, time="graph", gpu="h200").value
        (row,) = ranking.rows
        times = {name: cell.latency_us for name, cell in row.cells.items() if cell.latency_us and not cell.outdated}
        assert one.time_us == times[one.solution] == min(times.values())
        assert one.library_us == times[one.library_solution] and one.ratio == one.library_us / one.time_us
        assert found.solutions[one.library_solution].author == one.library not in ("kernelderby", "baseline")


def test_the_table_fits_80_columns_and_the_csv_has_every_shape(shapes, derby, checkout):
    code, text, err = derby("rank", *ASKED, "--root", checkout, columns=80)
    assert (code, err) == (0, "") and max(map(len, text.splitlines())) <= 80
    assert text.count("operator and sizes") == 1, "the table is not split"
    assert "Qwen/Qwen3-32B on 4 GPUs: 75 shapes of 10 operators" in text and "NVIDIA H200" in text
    assert len(derby("rank", *ASKED, "--format", "csv", "--root", checkout)[1].splitlines()) == 1 + len(shapes)
    one = derby("rank", "rms_norm", *ASKED, "--format", "markdown", "--root", checkout)[1]
    assert "derby_rms_norm" in one and "silu_and_mul" not in one


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "gemma-3-4b", "qwen3-next-80b-a3b"])
def test_every_committed_configuration_gives_one_narrow_table(derby, checkout, name):
    """A name with a dot is no file."""
    code, text, err = derby("rank", "--model", name, "--root", checkout, columns=80)
    assert (code, err) == (0, "") and text.count("operator and sizes") == 1


def test_what_is_not_measured_says_so(derby, checkout):
    text = derby("rank", *ASKED, "--protocol", "cupti-span-1", "--root", checkout)[1]
    assert "no graph time" in text and "derby_rms_norm" not in text
    assert "0 of 75 shapes are at most 2 x away" in text


@pytest.mark.parametrize(
    "words, said",
    [
        (("--model", "qwen3-3b"), "qwen3-3b: is no file, and no committed configuration; did you mean"),
        (("--model", "qwen3-32b", "--tp", 3), "intermediate_size: 25600 is no multiple of --tp 3; give a divisor"),
        (("--model", "qwen3-32b", "--tokens", "x"), "--tokens: 'x' is no number of tokens"),
        (("l2_norm", *ASKED), "qwen3-32b: implies no shape of l2_norm; `derby shapes qwen3-32b` lists its operators"),
        ((*ASKED, "--gpu", "b3000"), "--gpu: no row was measured on 'b3000'"),
    ],
)
def test_bad_words_are_one_line(derby, checkout, words, said):
    code, out, err = derby("rank", *words, "--root", checkout)
    assert (code, out) == (1, "") and err.count("\n") == 1 and said in err


@pytest.mark.parametrize(
    "words", [("--tp", 2), (*ASKED, "--importance"), (*ASKED, "--shape", "m=1"), (*ASKED, "--shapes")]
)
def test_options_that_do_not_go_together(derby, checkout, words):
    assert derby("rank", *words, "--root", checkout)[0] == 2


def test_a_set_without_these_operators(derby, small_set):
    code, out, err = derby("rank", *ASKED, "--root", small_set)
    assert (code, out) == (1, "") and "implies no shape of an operator of the set" in err


def test_a_quantisation_without_an_operator_is_told(derby, checkout, tmp_path):
    config = json.loads((standing.CONFIGS / "llama-3.1-8b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
    code, out, err = derby("rank", "--model", path, "--tokens", 1, "--root", checkout)
    assert code == 0 and "gemm_bf16" in out and "linear layers of this quantisation are no operator" in err


def test_the_api_refuses_a_number_of_gpus_below_one(checkout):
    with pytest.raises(DerbyError, match="sharing=0 is no number of GPUs"):
        kernelderby.open(checkout).rank_for_model("qwen3-32b", sharing=0)


def test_the_command_that_measures_a_shape_does_not_contradict_itself(checkout):
    near = kernelderby.open(checkout).nearest("block_scaled_mm", "m=64,n=512,k=7168")
    assert near.shape == "m=64,n=512,k=7168", "the numbers of blocks follow from n and k"
