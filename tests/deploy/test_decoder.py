"""derby serve-bench on a CPU: a small decoder runs with every variant and gives the same logits."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from kernelderby.errors import DerbyError
from kernelderby.measure.decoder import bench, prediction, variants
from kernelderby.measure.decoder.layers import (
    Decoder,
    DecoderSizes,
    LatentDecoder,
    LatentSizes,
    StepLoad,
    plain_latent_attention,
)

CPU = torch.device("cpu")
DENSE = DecoderSizes("dense", 2, 64, 4, 2, 128, 96, 50)
EXPERTS = DecoderSizes("experts", 2, 64, 4, 2, 128, 32, 50, experts=16, top_k=8)
LATENT = LatentSizes("latent", 1, 256, 4, 1, 128, 128, 50, experts=8, top_k=2, query_rank=128, shared=128)
DECODE, PREFILL = StepLoad(3, 3, 21), StepLoad(10, 1, 10)


def names(decoder):
    return {name for name, _, _ in variants.calls_of(decoder)}


@pytest.mark.parametrize("sizes", [DENSE, EXPERTS], ids=lambda sizes: sizes.name)
@pytest.mark.parametrize("load", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_the_package_gives_the_logits_of_plain_torch(package, sizes, load):
    decoder = Decoder(sizes, load, CPU)
    operators = variants.of_package(package, names(decoder))
    with torch.no_grad():
        one, other = decoder.step(operators), decoder.step({**operators, **variants.plain(decoder)})
        again = decoder.step(operators)
    assert one.shape == (load.sequences, sizes.vocab) and one.isfinite().all()
    assert torch.equal(one, again)  # a step leaves weights, cache and inputs as they were
    assert (one.float() - other.float()).abs().max() < 0.05 * one.float().abs().max()


def test_a_prompts_last_token_is_what_decoding_it_gives(package):
    """The cache's blocks lie in any order; both ways read the same keys."""
    prompt = Decoder(DENSE, PREFILL, CPU)
    step = Decoder(DENSE, StepLoad(1, 1, 10), CPU)
    step.layers, step.head = prompt.layers, prompt.head
    operators = variants.of_package(package, names(prompt) | names(step))
    with torch.no_grad():
        expected = prompt.step(operators)
        step.caches, step.table, step.slots = prompt.caches, prompt.table, prompt.slots[-1:]
        step.hidden = prompt.hidden[-1:]
        torch.testing.assert_close(step.step(operators), expected, atol=0.05, rtol=0.05)


def test_a_layer_with_latent_attention_is_what_its_formulas_say(package):
    """FP8 linear layers beside the same ones dequantized; paged attention beside plain torch."""
    decoder = LatentDecoder(LATENT, DECODE, CPU)
    operators = variants.of_package(package, names(decoder))

    def product(x, x_scale, weight, weight_scale):
        wide = weight.float() * weight_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (x.float() * x_scale.repeat_interleave(128, 1) @ wide.t()).bfloat16()

    plainly = {"block_scaled_mm_bf16": product, "mla_paged_decode_attention": plain_latent_attention}
    with torch.no_grad():
        one, other = decoder.step(operators), decoder.step({**operators, **plainly, **variants.plain(decoder)})
        again = decoder.step(operators)
    assert one.shape == (3, LATENT.vocab) and one.isfinite().all() and torch.equal(one, again)
    assert (one.float() - other.float()).abs().max() < 0.05 * one.float().abs().max()


def test_an_operator_that_the_package_lacks_is_the_float32_one_and_a_cast(package):
    class Older:
        block_scaled_mm = staticmethod(lambda *given: torch.ones(2, 2))
        fused_add_rms_norm_ = None

    found = variants.of_package(Older, ["block_scaled_mm_bf16", "mla_paged_decode_attention"])
    assert found["block_scaled_mm_bf16"]().dtype is torch.bfloat16
    assert found["mla_paged_decode_attention"] is plain_latent_attention
    with pytest.raises(DerbyError, match="brings no silu_and_mul"):
        variants.of_package(Older, ["silu_and_mul"])


def test_experts_are_drawn_by_zipfs_law():
    decoder = Decoder(EXPERTS, StepLoad(4096, 1, 4096), CPU)
    counts = decoder.layers[0]["routing"].argmax(-1).bincount(minlength=16).sort(descending=True).values / 4096
    harmonic = sum(1 / rank for rank in range(1, 17))
    assert counts[0].item() == pytest.approx(1 / harmonic, abs=0.03)
    assert counts[3].item() == pytest.approx(1 / (4 * harmonic), abs=0.03)


def test_calls_have_the_axes_of_their_operators(package):
    cases = [Decoder(sizes, load, CPU) for sizes in (DENSE, EXPERTS) for load in (DECODE, PREFILL)]
    for decoder in (*cases, LatentDecoder(LATENT, DECODE, CPU)):
        for name, axes, count in variants.calls_of(decoder):
            assert set(package.OPERATORS[name].selector.axes) <= set(axes) and count > 0


class Winners:
    """A package's tables, of one operator measured at 16, 64 and 1,024 tokens; the last one without a library."""

    def __init__(self):
        selector = type("S", (), {"axes": ("num_tokens",), "kinds": {"ours": "own", "theirs": "library"}})
        about = {"points": [[[16], [1.0, 3.0]], [[64], [4.0, 6.0]], [[1024], [9.0, None]]]}
        self.OPERATORS = {"norm": type("O", (), {"selector": selector, "about": about})}


def test_the_prediction_is_of_measured_shapes_or_between_them_and_says_what_is_unknown():
    """At 16 tokens ours saves 2 us. At 32, an octave from both, times are the geometric means: 2 and 4.24 us."""
    found = prediction.predicted(Winners(), [("norm", {"num_tokens": 16}, 10)], 1000.0)
    assert found.saved_us == pytest.approx(20.0) and found.unknown == ()
    calls = [("norm", {"num_tokens": 32}, 1), ("norm", {"num_tokens": 1025}, 5), ("gone", {}, 1)]
    found = prediction.predicted(Winners(), calls, 1000.0)
    assert found.saved_us == pytest.approx(18**0.5 - 2)  # further off than 4 octaves nothing is predicted
    assert found.unknown == ("gone: no row of a library in the package",)
    [norm] = found.operators
    assert norm.away == pytest.approx(4.0, abs=0.01) and norm.library_us > 18**0.5 and found.doubt_us == norm.doubt_us


def test_beyond_the_measured_shapes_times_follow_their_slope():
    """An octave off at 128 tokens: ours doubles with the tokens, the library by the root of 2; slopes a little less."""
    library, saved, away = prediction.estimate(prediction.Rows(Winners()).of("norm"), torch.tensor([7.0]).double())
    assert 7.0 < library - saved < 8.0 and 8.0 < library < 6 * 2**0.5 and away == 1.0


def test_rows_of_the_float32_form_count_where_the_bfloat16_form_has_none(monkeypatch):
    """At 16 tokens the own row's 3 us, whatever the other form's library takes there; at 256 the other form's 8."""
    winners = Winners()
    selector = winners.OPERATORS["norm"].selector
    about = {"points": [[[16], [1.0, 30.0]], [[256], [4.0, 8.0]]]}
    winners.norm = None  # served in this form
    winners.OPERATORS["norm_float32"] = type("O", (), {"selector": selector, "about": about})
    monkeypatch.setitem(prediction.INSTEAD, "norm", "norm_float32")
    points = {int(2 ** each.octaves[0]): each.library for each in prediction.Rows(winners).of("norm")}
    assert points == {16: 3.0, 64: 6.0, 256: 8.0}


class Grown(Winners):
    """Measured at each octave from 2 to 2,048 tokens; ours saves a tenth, and half from 256 tokens on."""

    def __init__(self):
        super().__init__()
        points = [[[2**each], [2**each * (0.5 if each > 7 else 0.9), float(2**each)]] for each in range(1, 12)]
        self.OPERATORS["norm"].about = {"points": points}


def test_the_doubt_is_what_the_rule_missed_on_the_rows_and_grows_with_the_distance():
    """The jump of the saving is missed by up to half of the library's time where the rows beside it are left out."""
    rows = prediction.Rows(Grown())
    near, far = rows.doubt("norm", 0.0), rows.doubt("norm", 3.0)
    assert 0.05 < near < far < 0.5
    measured = prediction.predicted(Grown(), [("norm", {"num_tokens": 512}, 1)], 1e6)
    assert measured.saved_us == pytest.approx(256.0) and measured.doubt_us == pytest.approx(512 * near)
    beyond = prediction.predicted(Grown(), [("norm", {"num_tokens": 2**14}, 1)], 1e6)
    assert beyond.doubt_us == pytest.approx(beyond.operators[0].library_us * far, rel=1e-6)


def test_no_operator_takes_longer_than_the_step_and_doubts_of_operators_add_by_squares():
    one = prediction.predicted(Grown(), [("norm", {"num_tokens": 512}, 4)], 600.0)
    assert one.operators[0].library_us == pytest.approx(600.0) and one.saved_us == pytest.approx(300.0)
    winners = Grown()
    winners.OPERATORS["other"] = winners.OPERATORS["norm"]
    calls = [(name, {"num_tokens": 512}, 1) for name in ("norm", "other", "norm")]
    both = prediction.predicted(winners, calls, 1e6)
    twice, once = (each.doubt_us for each in both.operators)
    assert twice == pytest.approx(2 * once) and both.doubt_us == pytest.approx((twice**2 + once**2) ** 0.5)


def test_calls_that_were_not_measured_share_what_is_left_of_the_step():
    calls = [("norm", {"num_tokens": tokens}, 1) for tokens in (512, 2**13, 2**13)]
    alone = prediction.predicted(Grown(), calls[:1], 600.0)
    every = prediction.predicted(Grown(), calls, 600.0)
    assert alone.operators[0].library_us == 512.0 and every.operators[0].library_us == pytest.approx(600.0)
    assert every.saved_us < 256.0 + 0.6 * 88.0, "ours saves a half"


def test_rows_of_the_float32_form_predict_the_bfloat16_one():
    """They do the same work; a form with one row alone would give one time for every size."""
    winners = Grown()
    winners.fused_moe_bf16 = winners.fused_moe = None
    winners.OPERATORS |= {"fused_moe": winners.OPERATORS["norm"], "fused_moe_bf16": Winners().OPERATORS["norm"]}
    found = prediction.predicted(winners, [("fused_moe_bf16", {"num_tokens": 1024}, 1)], 1e6)
    assert found.saved_us == pytest.approx(512.0) and found.operators[0].away == 0


def test_the_table_has_an_interval_and_names_the_operators_that_are_in_doubt():
    from kernelderby.report.decoder import served_answer

    part = prediction.OperatorPrediction("fused_moe_bf16", 5.0, 400.0, 0.0, 170.0)
    sure = prediction.OperatorPrediction("rms_norm", 0.0, 10.0, 5.0, 0.1)
    found = prediction.Prediction(5.0, 170.0, (sure, part), ("mla: no row of a library in the package",))
    cell = bench.DecoderCell(DECODE, {"libraries": 1000.0, "winners": 910.0}, found, {}, {}, {})
    answer = served_answer("small", "NVIDIA H200", [cell])
    text = " ".join(answer.to_text(200).split())
    assert "1000 - 910.0 9.9% 0.5% (-14 to 21%)" in text
    assert "fused_moe_bf16 5.0 octaves 40.0% 0.0% 17.0%" in text and "rms_norm measured" not in text
    assert "mla: no row of a library in the package, so its saving is not predicted" in text
    [step] = answer.make_data()["steps"]
    assert step["predicted_us"] == 995.0 and step["predicted_doubt_us"] == 170.0 and len(step["predicted_parts"]) == 2


def test_a_cell_has_times_of_each_variant_and_predicts_nothing_on_a_cpu(package, monkeypatch):
    monkeypatch.setattr(bench, "package", lambda: package)
    [cell] = bench.bench(DENSE, [DECODE], CPU, rounds=1, compiles=False)
    assert set(cell.step_us) == {"libraries", "winners"} and cell.prediction is None
    assert cell.difference == {"winners": 0.0}
    assert cell.ran["rms_norm"] == dict.fromkeys(("libraries", "winners"), ["plain torch"] * 2)  # query, key


def test_the_solutions_of_each_variant_are_told_as_they_ran(package, monkeypatch):
    """Where no library is installed, the gain is one over plain torch: a table that hides it is no comparison."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["silu_and_mul"].about)
    kinds = (("ours", "own"), ("theirs", "library"), ("torch", "plain"))
    about["solutions"] = {each: {"kind": kind, "in_place": {}, "returns": False} for each, kind in kinds}
    about["points"] = [[[3, 96], [1.0, 2.0, 3.0]]]
    operator = operators.ServedOperator("silu_and_mul", about)
    monkeypatch.setitem(package.OPERATORS, "silu_and_mul", operator)
    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    calls = [("silu_and_mul", {"num_tokens": 3, "intermediate_size": 96}, 2), ("mla_paged", {}, 1)]
    operator._warm = dict.fromkeys((("ours", 0), ("torch", 0)))  # the library did not load
    found = variants.which_ran(package, calls, CPU)
    assert found["silu_and_mul"] == {"libraries": ["plain torch"], "winners": ["ours"]}
    assert found["mla_paged"] == {"libraries": ["plain torch"], "winners": ["plain torch"]}
    operator._warm[("theirs", 0)] = None
    assert variants.which_ran(package, calls, CPU)["silu_and_mul"]["libraries"] == ["theirs"]


def test_a_capture_that_plain_torch_ends_is_one_line(monkeypatch):
    """The experts' plain torch reads the routing from the GPU."""
    problem = RuntimeError(
        "CUDA error: operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA"
    )

    def captured(run):
        raise problem

    monkeypatch.setattr(bench, "_captured", captured)
    with pytest.raises(DerbyError, match=r"when stream is capturing\): no library of fused_moe_bf16 is installed"):
        bench._all_captured({"libraries": None}, ["fused_moe_bf16"])
    with pytest.raises(RuntimeError, match="not permitted"):  # whatever else it is
        bench._all_captured({"libraries": None}, [])
    problem = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError):
        bench._all_captured({"libraries": None}, ["fused_moe_bf16"])


def test_rows_of_libraries_predict_nothing_of_plain_torch():
    calls = [("norm", {"num_tokens": 16}, 10)]
    found = prediction.predicted(Winners(), calls, 1000.0, ["norm"])
    assert found.saved_us == 0 and found.operators == () and "norm: plain torch ran" in found.unknown[0]


def test_another_gpu_has_a_gain_and_no_prediction():
    """The rows are of the package's GPU."""
    from kernelderby.report.decoder import served_answer

    ran = {"rms_norm": {"libraries": ["vllm_rms_norm"] * 2, "winners": ["vllm_rms_norm", "fla_rms_norm"]}}
    times = {"libraries": 1000.0, "winners": 990.0}
    cell = bench.DecoderCell(DECODE, times, None, {"winners": 0.0}, times, {"rms_norm": 1.0}, ran)
    text = " ".join(served_answer("small", "NVIDIA H100", [cell]).to_text(200).split())
    assert "1000 - 990.0 1.0% -" in text and "rows are of another device" in text
    assert "rms_norm vllm_rms_norm vllm_rms_norm, fla_rms_norm" in text


def test_loads_that_do_not_fit_are_left_out_and_the_measured_ones_stay(package, monkeypatch):
    from kernelderby.api.decoder import serve_bench

    monkeypatch.setattr(bench, "package", lambda: package)
    cell = bench.DecoderCell(DECODE, {"libraries": 2.0, "winners": 1.0}, None, {"winners": 0.0}, {}, {})
    fitting = [2]  # sequences

    def made(sizes, load, device):
        if load.sequences not in fitting:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return load

    monkeypatch.setattr(bench, "Decoder", made)
    monkeypatch.setattr(bench, "_cell", lambda *_: cell)
    words = {"layers": 1, "context": 100, "prefill": 0, "device": "cpu"}
    answer = serve_bench(Path("qwen3-8b"), [64, 2, 512], **words)
    assert answer.value == (cell,) and [each.split(" do not fit")[0] for each in answer.warnings] == [
        "64 sequences of 100 tokens",
        "512 sequences of 100 tokens",
    ]
    with pytest.raises(DerbyError, match="give fewer --layers, a shorter --context"):
        serve_bench(Path("qwen3-8b"), [64], **words)


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(variants, "PACKAGE", "kernelderby_nothing")
    with pytest.raises(DerbyError, match="make it by `derby export --wheel DIR`, then pip install the wheel"):
        variants.package()


def test_the_command_on_a_cpu(package, monkeypatch, tmp_path):
    from click.testing import CliRunner

    from kernelderby.cli import derby

    config = tmp_path / "small.json"
    config.write_text(
        '{"model_type": "qwen3", "hidden_size": 64, "vocab_size": 50, "num_attention_heads": 4, "head_dim": 128, '
        '"num_key_value_heads": 2, "intermediate_size": 96, "hidden_act": "silu", "rope_theta": 1e6}'
    )
    words = ["serve-bench", str(config), "--batch", "2", "--layers", "1", "--context", "20", "--prefill", "0"]
    result = CliRunner().invoke(derby, [*words, "--rounds", "1", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert (
        "neither times nor logits compare anything" in " ".join(result.output.split()) and "0% of" not in result.output
    )
    result = CliRunner().invoke(derby, ["serve-bench", "gpt-oss-20b", "--device", "cpu"])
    assert isinstance(result.exception, DerbyError) and "and DeepSeek-V3's; try" in str(result.exception)
