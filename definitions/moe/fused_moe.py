"""Experts of a mixture of experts on routed tokens, in float32: gate and up projection, SwiGLU, down projection,
weighted sum over each token's experts. The routing is an input; contributions of an expert that it names twice add."""

import torch

SMALL_AXES = {"num_tokens": 9, "hidden_size": 264, "intermediate_size": 80, "gate_up_size": 160, "num_experts": 8,
              "top_k": 2}
# Gates grow with hidden_size, as random weights are not scaled, and beside large ones SiLU is hardly told from ReLU: so
# there is a variant with small ones.
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 150}, {"top_k": 1}, {"num_experts": 2},
                  {"num_tokens": 150, "routing": "few"}, {"num_tokens": 150, "hidden_size": 16, "top_k": 4},
                  {"num_tokens": 33, "num_experts": 128, "top_k": 8, "hidden_size": 256, "intermediate_size": 64,
                   "gate_up_size": 128}]
# Experts of models over 1 to 8 GPUs, by their width or by their number; routers as trained ones skew.
AXES_SPACE = {"num_tokens": (1, 16384),
              "hidden_size": [1024, 2048, 2048, 2880, 4096, 5120, 6144, 7168, (64, 7168, 8)],
              "intermediate_size": [192, 256, 384, 512, 704, 768, 1024, 1408, 1536, 1792, 2048, 2880, 4096, 14336,
                                    (64, 4096, 8)], "gate_up_size": "2 * intermediate_size",
              "num_experts": [8, 16, 32, 64, 128, 160, 256, 384, 512, (2, 512)],
              "top_k": [1, 2, (1, "min(10, num_experts)"), "min(8, num_experts)"],
              "routing": [None, "zipf", "few", "idle"]}
SMALL_SPACE = {"num_tokens": (1, 150), "hidden_size": (16, 264, 8), "intermediate_size": (16, 136, 8),
               "num_experts": [8, 16, (2, 64)]}

# Gates so small that SiLU is told from ReLU and GELU; more tokens of an expert than any mean leads to expect.
INPUT_DRAWS = [{"hidden_states": 0.05}, {"routing": "few"}]
REFERENCE_ROWS = {"hidden_states": 0, "topk_ids": 0, "topk_weights": 0}


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    intermediate_size = down_weight.shape[2]
    output = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for expert in topk_ids.unique().tolist():
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        gate_up = hidden_states[token].float() @ gate_up_weight[expert].float().t()
        activated = torch.nn.functional.silu(gate_up[:, :intermediate_size]) * gate_up[:, intermediate_size:]
        result = activated @ down_weight[expert].float().t()
        output.index_add_(0, token, result * topk_weights[token, slot, None])
    return output


def skewed(routing, tokens, num_experts, top_k, generator):
    """top_k different experts a token, [tokens, top_k]: the largest of log popularity plus Gumbel noise, which draws
    each next expert in proportion to its popularity (Plackett-Luce)."""
    rank = torch.randperm(num_experts, generator=generator).float()  # the most popular expert has 0
    allowed = {"zipf": num_experts, "few": 16 if num_experts > 16 else top_k, "idle": num_experts // 2}[routing]
    popularity = -torch.log1p(rank) if routing == "zipf" else torch.zeros(num_experts)
    popularity = popularity.masked_fill(rank >= max(allowed, top_k), float("-inf"))
    noise = torch.rand(tokens, num_experts, generator=generator).clamp(1e-7, 1 - 1e-7).log().neg().log().neg()
    return (popularity + noise).topk(top_k, dim=-1).indices


def generate_inputs(axes_and_scalars, device):
    """Each token's experts and their weights, as the survey draws the experts: each slot is uniform over all of them,
    so a token may name an expert twice (1 token of 8 with 2 of 8 experts, 1 of 5 with 8 of 128). A trained router never
    does; the input is valid all the same, and the weights of both slots count.

    Weights are those of a router: the softmax (as Mixtral and Qwen3 have it) of the top_k largest of num_experts
    standard normal logits, largest first. They sum to 1.

    `routing` in axes_and_scalars, where there is one, is how trained routers skew instead; a token's experts are
    all different then:
      zipf   the r-th most popular expert is asked for 1 / r times as often as the first;
      few    all tokens go to 16 experts, or to top_k where there are no more than 16; the others get none;
      idle   half of the experts get no token, the others evenly many.

    `seed` in axes_and_scalars fixes every value, drawn on the CPU.
    """
    size = axes_and_scalars
    tokens, num_experts, top_k = size["num_tokens"], size["num_experts"], size["top_k"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    experts = torch.randint(num_experts, (tokens, top_k), generator=generator)
    if "routing" in size:
        experts = skewed(size["routing"], tokens, num_experts, top_k, generator)
    values = torch.randn(tokens, num_experts, generator=generator).topk(top_k, dim=-1).values
    return {"topk_ids": experts.to(torch.int32).to(device), "topk_weights": values.softmax(-1).to(device)}


def same_work(given, generator):
    """Other contents for a timed call: the tokens in another order, and each token's experts."""
    ids, weights = given["topk_ids"], given["topk_weights"]
    order = torch.randperm(len(ids), generator=generator, device=ids.device)
    slots = torch.rand(ids.shape, generator=generator, device=ids.device).argsort(-1)
    return {"topk_ids": ids[order].gather(1, slots), "topk_weights": weights[order].gather(1, slots)}


def count_cost(axes, inputs):
    """Of a pair of a token and a different expert: both projections, 5 per activated value, and the weight on each
    result. An expert that a token names twice need run but once on it, so it is one pair. Of a token and an active
    expert: the survey looks the expert up among the token's top_k, 2 top_k - 1. Only the weights of experts that some
    token chose are read.

    facts: pairs, active_experts, weight_bytes.
    """
    tokens, hidden, intermediate, top_k = (
        axes[name] for name in ("num_tokens", "hidden_size", "intermediate_size", "top_k"))
    experts = inputs["topk_ids"].sort(1).values
    pairs = tokens * top_k - int((experts[:, 1:] == experts[:, :-1]).sum())
    active = int(experts.unique().numel())
    weights = 3 * hidden * intermediate
    return {"flops": {"bfloat16": pairs * (2 * weights + 5 * intermediate + hidden)
                      + tokens * active * (2 * top_k - 1)},
            "bytes_read": 2 * active * weights + tokens * (2 * hidden + 8 * top_k),
            "bytes_written": 4 * tokens * hidden,
            "facts": {"pairs": pairs, "active_experts": active, "weight_bytes": 2 * active * weights}}
