"""Tokens per second of a vLLM engine with the winners and without: `python benchmarks/vllm_engine.py --layers 24`.

Needs one GPU, vLLM (written against 0.25.1) and the wheel of `derby export --wheel`; no network and no tokenizer. Two
engines of one model run side by side, one with $KERNELDERBY_VLLM and one without. They generate in turn, A B B A, so
that only one of them works at a time. Weights are random and keep each product's scale, so that logits mean something;
routing is nearly uniform, as random routers are. A step's time is that of many tokens less that of few, which takes
out the prompts and the first step. The engines' logs: OUT/<name>.log.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
CONFIGS = CHECKOUT / "kernelderby" / "shapes" / "configs"
ARCHITECTURES = {"qwen3_moe": "Qwen3MoeForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ENGINES = ("vllm", "winners")
FEW = 8  # tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-30b-a3b", help="a file of kernelderby/shapes/configs")
    parser.add_argument("--layers", type=int, default=24, help="too few, and the host's work hides the GPU's")
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="timed steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--operators", default="all", help="$KERNELDERBY_VLLM of the second engine")
    parser.add_argument("--compile", type=int, default=0, choices=(0, 3), help="vLLM's mode: 3 compiles by Inductor")
    parser.add_argument("--out", type=Path, default=Path("vllm_engine"))
    parser.add_argument("--limit", type=float, default=300, help="seconds in all")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_model(options)
    return race(options)


def write_model(options: argparse.Namespace) -> None:
    """config.json as Hugging Face has it, cut to --layers."""
    config = json.loads((CONFIGS / f"{options.model}.json").read_text())
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config |= {
        "architectures": [ARCHITECTURES[config["model_type"]]],
        "num_hidden_layers": options.layers,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 40960,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    (options.out / "config.json").write_text(json.dumps(config, indent=1))


# ------------------------------------------------------------------------------------------------------ the two engines


class Engine:
    """A process that answers a line of JSON with one."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        environment |= {"KERNELDERBY_VLLM": options.operators if name == "winners" else "", "HF_HUB_OFFLINE": "1"}
        environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
        with (options.out / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], "--serve"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, **question: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the engine {self.name} ended; its log says why")
        return json.loads(line)  # type: ignore[no-any-return]


def race(options: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit(f"stopped after --limit {options.limit:g} s, or from outside"))
    signal.setitimer(signal.ITIMER_REAL, options.limit)
    engines = [Engine(name, options) for name in ENGINES]
    try:
        for each in engines:
            print(f"{each.name}: ready after {each.answer()['seconds']:.0f} s", flush=True)
        print("First tokens: share that is equal and largest difference of a log probability, between the engines and")
        print("between vLLM's prompts together and one by one.")
        print(f"{'batch':>5} {'vllm us':>9} {'winners us':>10} {'gain':>6}  {'tokens/s':16} {'engines':12} one by one")
        for batch in map(int, options.batch.split(",")):
            for each in engines:
                each.ask(batch=batch, tokens=FEW)  # warm
            one, two = (each.ask(batch=batch, tokens=1)["first"] for each in engines)
            alone = engines[0].ask(batch=batch, tokens=1, together=False)["first"]
            times: dict[str, list[float]] = {name: [] for name in ENGINES}
            for _ in range(options.rounds):
                for each in (*engines, *reversed(engines)):
                    few, many = (each.ask(batch=batch, tokens=n)["seconds"] for n in (FEW, FEW + options.tokens))
                    times[each.name].append((many - few) / options.tokens * 1e6)
            print(row(batch, times, apart(one, two), apart(one, alone)), flush=True)
            (options.out / f"batch{batch}.json").write_text(json.dumps({"us": times, "first": [one, two, alone]}))
        for name, solutions in engines[1].ask(ran=True)["ran"].items():
            print(f"{name} ran {', '.join(solutions)}")
    except RuntimeError as problem:
        print(problem)
        return 1
    finally:
        for each in engines:
            each.process.kill()
    return 0


def row(batch: int, times: dict[str, list[float]], engines: str, alone: str) -> str:
    before, after = (statistics.median(times[name]) for name in ENGINES)
    rates = f"{batch / before * 1e6:,.0f} to {batch / after * 1e6:,.0f}"
    return f"{batch:5} {before:9,.0f} {after:10,.0f} {before / after - 1:6.1%}  {rates:16} {engines:12} {alone}"


def apart(one: list[Any], two: list[Any]) -> str:
    """How far the first tokens and their log probabilities are apart, prompt by prompt."""
    pairs = list(zip(one, two, strict=True))
    equal = sum(a[0] == b[0] for a, b in pairs) / len(pairs)
    return f"{equal:.0%}, {max(abs(a[1] - b[1]) for a, b in pairs):.3f}"


# ---------------------------------------------------------------------------------------------------- one engine


def serve(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    faulthandler.dump_traceback_later(options.limit * 0.8)  # where it hangs

    def stage(text: str) -> None:
        print(f"[{time.perf_counter() - start:6.1f} s] {text}", file=sys.stderr, flush=True)

    stage("importing vllm")
    from vllm import LLM, SamplingParams

    stage("making the engine")
    switched_on = os.environ["KERNELDERBY_VLLM"].split(",")
    own_attention = (
        {"attention_config": {"backend": "CUSTOM"}} if {"all", "attention"}.intersection(switched_on) else {}
    )
    batches = [int(each) for each in options.batch.split(",")]
    engine = LLM(
        model=str(options.out),
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype="bfloat16",
        max_model_len=options.prompt + options.tokens + 2 * FEW,
        max_num_seqs=max(batches),
        enable_prefix_caching=False,
        gpu_memory_utilization=0.2,  # must be free at the start; the cache has its own size
        kv_cache_memory_bytes=4 << 30,
        kernel_config={"enable_flashinfer_autotune": False},  # both engines run vLLM's Triton and CUDA kernels
        **own_attention,
        compilation_config={
            "mode": options.compile,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": batches,
        },
    )
    stage("filling the weights")
    engine.apply_model(fill)
    stage("ready")
    print(json.dumps({"seconds": time.perf_counter() - start}), file=replies, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = ran() if question.get("ran") else generate(engine, SamplingParams, options, **question)
        print(json.dumps(answer), file=replies, flush=True)
    return 0


def ran() -> dict[str, Any]:
    """Operator -> its solutions that the plugin ran in this engine."""
    operators = getattr(sys.modules.get("kernelderby_winners"), "OPERATORS", {})
    return {"ran": {name: each.ran() for name, each in operators.items() if each.ran()}}


def generate(
    engine: Any, parameters: Any, options: argparse.Namespace, batch: int, tokens: int, together: bool = True
) -> dict[str, Any]:
    """first: [token, its log probability] of each prompt's first token, where one token is asked for. together: in
    one call, else a call for each prompt."""
    prompts = [
        {"prompt_token_ids": [(31 * one + 7 * n) % 30000 for n in range(options.prompt)]} for one in range(batch)
    ]
    wanted = parameters(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0 if tokens == 1 else None
    )
    start = time.perf_counter()
    calls = [prompts] if together else [[each] for each in prompts]
    found = [each for call in calls for each in engine.generate(call, wanted, use_tqdm=False)]
    seconds = time.perf_counter() - start
    assert all(len(each.outputs[0].token_ids) == tokens for each in found)
    if tokens > 1:
        return {"seconds": seconds}
    first = [(each.outputs[0].token_ids[0], each.outputs[0].logprobs[0]) for each in found]
    return {"seconds": seconds, "first": [[token, probable[token].logprob] for token, probable in first]}


def fill(model: Any) -> None:
    """Replaces vLLM's dummy weights, which are all near 0.001, norms too, by the same draws in both engines."""
    import torch

    for number, (name, each) in enumerate(sorted(model.named_parameters())):
        random = torch.Generator(each.device).manual_seed(number)
        if each.dim() == 1:
            each.data.fill_(1)
        elif each.is_floating_point():
            each.data.normal_(0, 1 if "embed" in name else each.shape[-1] ** -0.5, generator=random)


if __name__ == "__main__":
    sys.exit(main())
