"""Tokens per second of a decoder of a model's true sizes, with the winners and with the best libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.report.answer import Answer
from kernelderby.report.decoder import CellLike, served_answer
from kernelderby.shapes.model import Model, read_model
from kernelderby.shapes.standing import committed
from kernelderby.store.counts import counted

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
) -> Answer[tuple[CellLike, ...]]:
    """model: a config.json, or the name of a committed one. layers: of the decoder; a step's time is of so many and
    of the logits. prefill: tokens of one more load, one prompt; 0 for none. device: cuda, or cpu to try it out.
    compiles: whether torch.compile takes part; on a CPU it does not.
    DerbyError: no package of winners is installed, a model whose layer this decoder does not have, no GPU."""
    from kernelderby.measure.decoder.bench import bench, place
    from kernelderby.measure.decoder.latent_layers import LatentSizes
    from kernelderby.measure.decoder.layers import DecoderSizes, StepLoad

    there, where = place(device)
    found = read_model(committed(model), 1)
    is_latent = "kv_latent" in found.facts
    kind, values = (LatentSizes, _latent_sizes(found)) if is_latent else (DecoderSizes, _sizes(model, found))
    sizes = kind(name=found.name, layers=layers, **values)
    loads = [StepLoad(batch, batch, context) for batch in batches]
    loads += [StepLoad(prefill, 1, prefill)] if prefill and not is_latent else []
    cells = []
    for load in loads:
        told(f"{found.name}: {counted(load.tokens, 'token')}")
        cells += bench(sizes, [load], there, rounds, compiles=compiles and device == "cuda")
    part = f", one of {EXPERT_PARALLEL} GPUs with expert parallelism" if is_latent else ""
    return served_answer(f"{found.name}, {counted(layers, 'layer')}{part}", where, tuple(cells))


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
            f"{path}: this decoder has Qwen3's layers (a norm of each head, SiLU, bfloat16) and DeepSeek-V3's alone; "
            "try qwen3-8b, qwen3-30b-a3b or deepseek-v3"
        )
    names = {
        "hidden": "hidden",
        "heads": "heads",
        "kv_heads": "kv_heads",
        "head_dim": "head_dim",
        "vocab": "vocab",
        "eps": "eps",
        "rope_base": "rope_base",
    }
    sizes: dict[str, Any] = {own: facts[theirs] for own, theirs in names.items()}
    sizes |= {"intermediate": facts["expert" if "experts" in facts else "dense"]}
    sizes |= {name: facts[name] for name in ("experts", "top_k") if name in facts}
    return sizes
