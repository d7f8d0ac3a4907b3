"""derby serve-bench on a CPU: a small decoder runs with every variant and gives the same logits."""

import pytest

pytest.importorskip("torch")

import torch

from kernelderby.errors import DerbyError
from kernelderby.measure.decoder import bench, variants
from kernelderby.measure.decoder.latent_layers import LatentDecoder, LatentSizes, plain_latent_attention
from kernelderby.measure.decoder.layers import Decoder, DecoderSizes, StepLoad

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
    """A package's tables, of one operator with one measured shape of 16 tokens."""

    def __init__(self):
        selector = type("S", (), {"axes": ("num_tokens",), "kinds": {"ours": "own", "theirs": "library"}})
        about = {"points": [[[16], [1.0, 3.0]]]}
        self.OPERATORS = {"norm": type("O", (), {"selector": selector, "about": about})}


def test_the_prediction_is_of_the_nearest_measured_shape_and_says_what_is_unknown():
    calls = [("norm", {"num_tokens": 16}, 10), ("norm", {"num_tokens": 24}, 1), ("norm", {"num_tokens": 64}, 5)]
    saved, unknown = variants.predicted_saving(Winners(), calls, bench.nearest_times)
    assert saved == pytest.approx(11 * 2.0) and unknown == ["norm at num_tokens 64"]


def test_a_cell_has_times_of_each_variant_and_predicts_nothing_on_a_cpu(package, monkeypatch):
    monkeypatch.setattr(bench, "package", lambda: package)
    [cell] = bench.bench(DENSE, [DECODE], CPU, rounds=1, compiles=False)
    assert set(cell.step_us) == {"libraries", "winners"} and cell.predicted_us is None
    assert cell.difference == {"winners": 0.0} and cell.unknown


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
    assert "the times mean nothing" in result.output and "0% of" not in result.output
    result = CliRunner().invoke(derby, ["serve-bench", "gpt-oss-20b", "--device", "cpu"])
    assert isinstance(result.exception, DerbyError) and "and DeepSeek-V3's alone" in str(result.exception)
