"""Tokens per second of a decoder of a model's true sizes, with the winners and with the best libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelderby.errors import DerbyError
from kernelderby.report.answer import Answer
from kernelderby.report.decoder import served_answer
from kernelderby.shapes.model import Model, read_model
from kernelderby.shapes.standing import configuration_file
from kernelderby.store.counts import counted

if TYPE_CHECKING:
    from kernelderby.measure.decoder.layers import DecoderSizes

BATCHES = (1, 4, 16, 64, 256)
CONTEXT, PREFILL = 4096, 8192  # tokens
EXPERT_PARALLEL = 8  # GPUs that share the experts of a model with latent attention


def serve_bench(
    model: Path,
    batches: Sequence[int] = BATCHES,
    *,
    layers: int = 4,
    context: int = CONTEXT,
    prefill: int = PREFILL,
    rounds: int = 5,
    compiles: bool = True,
    device: str = "cuda",
    told: Callable[[str], None] = lambda _: None,
) -> Answer[tuple[Any, ...]]:
    """model: a config.json, or the name of a committed one. layers: number of layers of the decoder; a step runs these
    layers and the logits. prefill: tokens of an additional load with one prompt; 0 for no such load. device: cuda, or
    cpu to try it out. compiles: whether torch.compile takes part; on a CPU it does not. Loads that do not fit into the
    GPU's memory are left out, with a warning. DerbyError: no package of winners is installed, this decoder lacks the
    model's kind of layer, there is no GPU, or no load fits."""
    from kernelderby.measure.decoder.bench import DoesNotFit, bench, place
    from kernelderby.measure.decoder.layers import LatentSizes, StepLoad

    there, where = place(device)
    sizes = decoder_sizes(model, layers)
    is_latent = isinstance(sizes, LatentSizes)
    loads = [StepLoad(batch, batch, context) for batch in batches]
    loads += [StepLoad(prefill, 1, prefill)] if prefill and not is_latent else []
    cells, left_out = [], []
    for load in loads:
        told(f"{sizes.name}: {counted(load.tokens, 'token')}")
        try:
            cells += bench(sizes, [load], there, rounds, compiles=compiles and device == "cuda")
        except DoesNotFit as problem:
            left_out.append(str(problem))
    if not cells:
        raise DerbyError(left_out[0])
    part = f", one of {EXPERT_PARALLEL} GPUs with expert parallelism" if is_latent else ""
    return served_answer(f"{sizes.name}, {counted(layers, 'layer')}{part}", where, tuple(cells), left_out)


def decoder_sizes(model: Path, layers: int) -> DecoderSizes:
    """The sizes from a config.json, or from the name of a committed one. DerbyError: this decoder lacks the model's
    kind of layer."""
    from kernelderby.measure.decoder.layers import DecoderSizes, LatentSizes

    found = read_model(configuration_file(model), 1)
    is_latent = "kv_latent" in found.facts
    kind, values = (LatentSizes, _latent_sizes(found)) if is_latent else (DecoderSizes, _sizes(model, found))
    return kind(name=found.name, layers=layers, **values)


def _latent_sizes(model: Model) -> dict[str, Any]:
    names = {
        **{"hidden": "hidden", "heads": "heads", "head_dim": "nope_dim", "vocab": "vocab", "eps": "eps"},
        **{"intermediate": "expert", "top_k": "top_k", "query_rank": "q_latent", "latent": "kv_latent"},
        **{"rope": "rope_dim", "value": "v_dim", "shared": "shared"},
    }
    experts = max(model.facts["experts"] // EXPERT_PARALLEL, model.facts["top_k"])
    return {"kv_heads": 1, "experts": int(experts), **{own: model.facts[theirs] for own, theirs in names.items()}}


def _sizes(path: Path, model: Model) -> dict[str, Any]:
    facts = model.facts
    if not all(name in facts for name in ("norm_heads", "silu", "kv_heads", "rope_base")) or "fp8_block" in facts:
        raise DerbyError(
            f"{path}: this decoder has only Qwen3's layers (a norm of each head, SiLU, bfloat16) and DeepSeek-V3's; "
            "try qwen3-8b, qwen3-30b-a3b or deepseek-v3"
        )
    names = ("hidden", "heads", "kv_heads", "head_dim", "vocab", "eps", "rope_base")
    experts = {name: facts[name] for name in ("experts", "top_k") if name in facts}
    return {name: facts[name] for name in names} | {"intermediate": facts["expert" if experts else "dense"]} | experts
