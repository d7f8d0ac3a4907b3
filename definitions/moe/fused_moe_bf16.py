"""fused_moe as servers call it: a bfloat16 output, and a router's ids, so that a token's experts are all different."""

import torch

SMALL_AXES = {"num_tokens": 9, "hidden_size": 264, "intermediate_size": 80, "gate_up_size": 160, "num_experts": 8,
              "top_k": 2}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 150}, {"top_k": 1}, {"num_experts": 2},
                  {"num_tokens": 150, "hidden_size": 16, "top_k": 4},
                  {"num_tokens": 33, "num_experts": 128, "top_k": 8, "hidden_size": 256, "intermediate_size": 64,
                   "gate_up_size": 128}]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [1024, 2048, 2880, 4096, 5120, 6144, 7168, (64, 7168, 8)],
              "intermediate_size": [192, 256, 384, 512, 768, 1024, 1408, 1536, 2048, 2880, 4096, 14336, (64, 4096, 8)],
              "gate_up_size": "2 * intermediate_size", "num_experts": [8, 16, 32, 64, 128, 160, 256, 512, (2, 512)],
              "top_k": [1, 2, (1, "min(10, num_experts)"), "min(8, num_experts)"], "routing": ["even", "zipf"]}
SMALL_SPACE = {"num_tokens": (1, 150), "hidden_size": (16, 264, 8), "intermediate_size": (16, 136, 8),
               "num_experts": [8, 16, (2, 64)]}
INPUT_DRAWS = [{"hidden_states": 0.05}, {"routing": "even"}]  # gates so small that SiLU is told from ReLU
REFERENCE_ROWS = {"hidden_states": 0, "topk_ids": 0, "topk_weights": 0}


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    output = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for expert in topk_ids.unique().tolist():
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (hidden_states[token].float() @ gate_up_weight[expert].float().t()).chunk(2, dim=1)
        result = (torch.nn.functional.silu(gate) * up) @ down_weight[expert].float().t()
        output.index_add_(0, token, result * topk_weights[token, slot, None])
    return output.to(torch.bfloat16)


def generate_inputs(axes_and_scalars, device):
    """A token's experts: the top_k of a router whose r-th most popular expert is asked for 1 / r times as often as the
    first (Zipf; log popularity plus Gumbel noise), or, `routing` "even", equally often. Their weights: the softmax of
    the top_k largest of num_experts standard normal logits. `seed` fixes every value, drawn on the CPU."""
    size = axes_and_scalars
    shape, top_k = (size["num_tokens"], size["num_experts"]), size["top_k"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    popularity = torch.log1p(torch.randperm(shape[1], generator=generator).float()).neg()
    noise = torch.rand(shape, generator=generator).clamp(1e-7, 1 - 1e-7).log().neg().log().neg()
    chosen = (noise if size.get("routing") == "even" else popularity + noise).topk(top_k, dim=-1).indices
    values = torch.randn(shape, generator=generator).topk(top_k, dim=-1).values
    return {"topk_ids": chosen.to(torch.int32).to(device), "topk_weights": values.softmax(-1).to(device)}


def same_work(given, generator):
    """Other contents for a timed call: the tokens in another order, and each token's experts."""
    ids, weights = given["topk_ids"], given["topk_weights"]
    order = torch.randperm(len(ids), generator=generator, device=ids.device)
    slots = torch.rand(ids.shape, generator=generator, device=ids.device).argsort(-1)
    return {"topk_ids": ids[order].gather(1, slots), "topk_weights": weights[order].gather(1, slots)}


def count_cost(axes, inputs):
    """As of fused_moe, with 2 bytes an output: of a pair of a token and its expert both projections, 5 per activated
    value, the weight on each result; only the weights of experts that some token chose are read.

    facts: pairs, active_experts, weight_bytes.
    """
    tokens, hidden, intermediate, top_k = (
        axes[name] for name in ("num_tokens", "hidden_size", "intermediate_size", "top_k"))
    pairs, active, weights = tokens * top_k, int(inputs["topk_ids"].unique().numel()), 3 * hidden * intermediate
    return {"flops": {"bfloat16": pairs * (2 * weights + 5 * intermediate + hidden)},
            "bytes_read": 2 * active * weights + tokens * (2 * hidden + 8 * top_k),
            "bytes_written": 2 * tokens * hidden,
            "facts": {"pairs": pairs, "active_experts": active, "weight_bytes": 2 * active * weights}}
