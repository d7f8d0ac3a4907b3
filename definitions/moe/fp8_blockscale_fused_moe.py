"""Experts of a mixture of experts on routed tokens, in FP8 (e4m3) with block scales, computed in float32: gate and up
projection, SwiGLU, down projection, weighted sum over each token's experts. The routing is an input.

The scales are those of DeepSeek-V3's report (arXiv 2412.19437, section 3.3): one for 1x128 activations, one for 128x128
weights. What stands between the two projections is not quantized.
"""

import torch

BLOCK = 128

SMALL_AXES = {
    "num_tokens": 9, "hidden_size": 512, "intermediate_size": 256, "gate_up_size": 512, "num_experts": 8, "top_k": 2,
    "num_hidden_blocks": 4, "num_intermediate_blocks": 2, "num_gate_up_blocks": 4,
}
# Not one expert a token: there the output's standard deviation is 2, and of a kernel that quantizes in between only
# 0.98 lie within, now more, now less.
SMALL_VARIANTS = [
    {}, {"num_tokens": 150, "routing": "few"}, {"num_tokens": 0}, {"num_tokens": 1, "top_k": 8},
    {"num_tokens": 150},
    {"num_experts": 2}, {"top_k": 3},
    {"num_tokens": 33, "num_experts": 64, "top_k": 8, "hidden_size": 256, "num_hidden_blocks": 2,
     "intermediate_size": 128, "gate_up_size": 256, "num_intermediate_blocks": 1, "num_gate_up_blocks": 2},
    {"intermediate_size": 384, "gate_up_size": 768, "num_intermediate_blocks": 3, "num_gate_up_blocks": 6},
]
# Experts of FP8 models over 1 to 8 GPUs, by their width or by their number; routers as trained ones skew.
AXES_SPACE = {"num_tokens": (1, 16384), "num_hidden_blocks": [16, 24, 32, 40, 48, 56, (1, 56)],
              "hidden_size": "128 * num_hidden_blocks",
              "num_intermediate_blocks": [1, 2, 3, 4, 6, 8, 11, 12, 16, (1, 16)],
              "intermediate_size": "128 * num_intermediate_blocks", "gate_up_size": "2 * intermediate_size",
              "num_gate_up_blocks": "2 * num_intermediate_blocks",
              "num_experts": [8, 16, 32, 64, 128, 160, 256, 384, 512, (2, 512)],
              "top_k": [(2, "min(10, num_experts)"), "min(8, num_experts)"], "routing": [None, "zipf", "few", "idle"]}
SMALL_SPACE = {"num_tokens": (1, 150), "num_hidden_blocks": (1, 4), "num_intermediate_blocks": (1, 3),
               "num_experts": [4, 8, 16, (2, 64)]}

INPUT_DRAWS = [{"routing": "few"}]  # more tokens of an expert than any mean leads to expect
REFERENCE_ROWS = {"hidden_states": 0, "hidden_states_scale": 0, "topk_ids": 0, "topk_weights": 0}


def dequantize_weight(weight, scale):
    """weight fp8 [rows, columns], scale float32 [rows / 128, columns / 128] -> float32 [rows, columns]."""
    blocks = weight.float().view(scale.shape[0], BLOCK, scale.shape[1], BLOCK)
    return (blocks * scale[:, None, :, None]).view(weight.shape)


@torch.no_grad()
def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights):
    """One expert at a time: all of them in float32 would take 45 GB at the largest shape."""
    intermediate_size = down_weight.shape[2]
    blocks = hidden_states.float().view(*hidden_states_scale.shape, BLOCK)
    activations = (blocks * hidden_states_scale.unsqueeze(-1)).view(hidden_states.shape)
    output = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for expert in topk_ids.unique().tolist():
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        gate_up = activations[token] @ dequantize_weight(gate_up_weight[expert], gate_up_weight_scale[expert]).t()
        activated = torch.nn.functional.silu(gate_up[:, :intermediate_size]) * gate_up[:, intermediate_size:]
        result = activated @ dequantize_weight(down_weight[expert], down_weight_scale[expert]).t()
        output.index_add_(0, token, result * topk_weights[token, slot, None])
    return output.to(torch.bfloat16)


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
    """Each token's experts and their weights, and the block scales.

    A token's experts are the top_k largest of num_experts standard normal logits, largest first: all different and each
    as likely as any other (the survey's 32 tokens with 8 of 256 name 164 experts; 163 are to be expected of such a
    draw). The weights are the softmax of these logits and sum to 1.

    Block scales are log-normal with a standard deviation of 0.25. The fp8 codes of `random` inputs lie in [-2, 2], so
    an activation scale near 1 gives activations as after an RMSNorm. Weight scales fall with the square root of what is
    summed over: gate and up projection have standard deviations near 2.5, the output near 1, at every size.

    `routing` in axes_and_scalars, where there is one, is how trained routers skew: it
    chooses the experts instead.
      zipf   the r-th most popular expert is asked for 1 / r times as often as the first;
      few    all tokens go to 16 experts, or to top_k where there are no more than 16; the others get none;
      idle   half of the experts get no token, the others evenly many.

    `seed` in axes_and_scalars fixes every value, drawn on the CPU.
    """
    size = axes_and_scalars
    tokens, num_experts = size["num_tokens"], size["num_experts"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def scale(around, *shape):
        return around * torch.exp(0.25 * normal(*shape))

    values, experts = normal(tokens, num_experts).topk(size["top_k"], dim=-1)
    if "routing" in size:
        experts = skewed(size["routing"], tokens, num_experts, size["top_k"], generator)
    hidden, intermediate = size["num_hidden_blocks"], size["num_intermediate_blocks"]
    inputs = {
        "hidden_states_scale": scale(1.0, tokens, hidden),
        "gate_up_weight_scale": scale(2.4 * size["hidden_size"] ** -0.5, num_experts, size["num_gate_up_blocks"],
                                      hidden),
        "down_weight_scale": scale(0.5 * size["intermediate_size"] ** -0.5, num_experts, hidden, intermediate),
        "topk_ids": experts.to(torch.int32),
        "topk_weights": values.softmax(-1),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def same_work(given, generator):
    """Other contents for a timed call: the tokens in another order, and each token's experts."""
    ids, weights = given["topk_ids"], given["topk_weights"]
    order = torch.randperm(len(ids), generator=generator, device=ids.device)
    slots = torch.rand(ids.shape, generator=generator, device=ids.device).argsort(-1)
    return {"hidden_states_scale": given["hidden_states_scale"][order],
            "topk_ids": ids[order].gather(1, slots), "topk_weights": weights[order].gather(1, slots)}


def count_cost(axes, inputs):
    """Of a (token, expert) pair: both projections, 5 per activated value, weight and sum on each result. Of an expert
    that some token chose: its weights are dequantized, once. Only these experts' weights and scales are read.

    facts: pairs, active_experts, weight_bytes.
    """
    tokens, hidden, intermediate, top_k = (
        axes[name] for name in ("num_tokens", "hidden_size", "intermediate_size", "top_k"))
    pairs, active = tokens * top_k, int(inputs["topk_ids"].unique().numel())
    weights = 3 * hidden * intermediate
    scales = axes["num_hidden_blocks"] * (axes["num_gate_up_blocks"] + axes["num_intermediate_blocks"])
    return {"flops": {"float8_e4m3fn": pairs * (2 * weights + 5 * intermediate + 2 * hidden) + active * weights},
            "bytes_read": active * (weights + 4 * scales)
            + tokens * (hidden + 4 * axes["num_hidden_blocks"] + 8 * top_k),
            "bytes_written": 2 * tokens * hidden,
            "facts": {"pairs": pairs, "active_experts": active, "weight_bytes": active * weights}}
