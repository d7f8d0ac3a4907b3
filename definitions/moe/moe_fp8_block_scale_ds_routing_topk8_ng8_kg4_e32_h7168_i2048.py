"""FP8 block-scale mixture of experts with DeepSeek-V3 routing: the part of one expert-parallel rank.

256 routed experts in 8 groups of 32, the best 4 groups, the best 8 experts; this rank holds 32 consecutive experts
that start at `local_expert_offset`. Routing follows the DeepSeek-V3 report (arXiv 2412.19437, section 2.1.2:
sigmoid affinities, a bias that takes part in the selection only, node-limited groups); the block scales follow its
section 3.3 (1x128 for activations, 128x128 for weights). Everything is computed in float32.
"""

import torch

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8
BLOCK = 128

# A shrunken set of axes and scalars on which the same code runs on a CPU. The offset is no multiple of the group
# size (8 here), so that the local experts straddle two groups.
SMALL_AXES = {
    "seq_len": 9, "num_experts": 64, "num_local_experts": 8, "hidden_size": 256, "intermediate_size": 256,
    "gemm1_out_size": 512, "num_hidden_blocks": 2, "num_intermediate_blocks": 2, "num_gemm1_out_blocks": 4,
    "local_expert_offset": 12, "routed_scaling_factor": 2.5,
}
# What `derby check` changes in them, one case each: no token, one token (which often has no local expert), more rows an
# expert than a tile holds, an odd offset, the first and the last experts.
SMALL_VARIANTS = [
    {}, {"seq_len": 0}, {"seq_len": 1}, {"seq_len": 70}, {"local_expert_offset": 5}, {"local_expert_offset": 0},
    {"local_expert_offset": 56},
]
# Any number of tokens on any of the eight ranks.
AXES_SPACE = {"seq_len": (1, 16384), "local_expert_offset": [0, 32, 64, 96, 128, 160, 192, 224],
              "routed_scaling_factor": 2.5}
SMALL_SPACE = {"seq_len": (1, 150), "local_expert_offset": [0, (0, 56)]}
# Gates so small that SiLU is told from ReLU and GELU; tokens that go to local experts alone, eight rows for each.
INPUT_DRAWS = [{"hidden_states_scale": 0.1}, {"routing": "local"}]
REFERENCE_ROWS = {"routing_logits": 0, "hidden_states": 0, "hidden_states_scale": 1}


def route(routing_logits, routing_bias, routed_scaling_factor):
    """Experts and weights of every token.

    routing_logits [seq_len, num_experts], routing_bias [num_experts] -> expert ids int64 [seq_len, 8], best first,
    and weights float32 [seq_len, 8]. Equal scores go to the lower index, of a group and of an expert alike.
    """
    seq_len, num_experts = routing_logits.shape
    affinity = torch.sigmoid(routing_logits.float())
    selection = affinity + routing_bias.float()
    grouped = selection.view(seq_len, NUM_GROUPS, num_experts // NUM_GROUPS)
    group_score = grouped.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    groups = group_score.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_GROUPS]
    allowed = torch.zeros_like(group_score, dtype=torch.bool).scatter_(1, groups, True)
    candidates = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).view(seq_len, num_experts)
    experts = candidates.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_K]
    weights = affinity.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) * routed_scaling_factor


def dequantize_weight(weight, scale):
    """weight fp8 [rows, columns], scale float32 [rows / 128, columns / 128] -> float32 [rows, columns]."""
    blocks = weight.float().view(scale.shape[0], BLOCK, scale.shape[1], BLOCK)
    return (blocks * scale[:, None, :, None]).view(weight.shape)


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor):
    seq_len, hidden_size = hidden_states.shape
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    experts, weights = route(routing_logits, routing_bias, float(routed_scaling_factor))
    activation_scale = hidden_states_scale.t().repeat_interleave(BLOCK, dim=1)
    activations = hidden_states.float() * activation_scale
    out = torch.zeros(seq_len, hidden_size, dtype=torch.float32, device=hidden_states.device)
    for local in range(num_local_experts):
        token, slot = (experts == int(local_expert_offset) + local).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gemm1 = activations[token] @ dequantize_weight(gemm1_weights[local], gemm1_weights_scale[local]).t()
        up, gate = gemm1[:, :intermediate_size], gemm1[:, intermediate_size:]
        activated = torch.nn.functional.silu(gate) * up
        gemm2 = activated @ dequantize_weight(gemm2_weights[local], gemm2_weights_scale[local]).t()
        out.index_add_(0, token, gemm2 * weights[token, slot, None])
    return out.to(torch.bfloat16)


def generate_inputs(axes_and_scalars, device):
    """The inputs that cannot be plain random numbers: routing logits and bias, and the block scales.

    Expert popularity: logit = popularity of the expert + affinity of the token's topic + noise of the token, normal
    with standard deviations 0.35, 0.4 and 0.9. In the workloads with thousands of tokens that makes the busiest of 256
    experts 4 to 7 times as busy as the mean and the quietest tenth a quarter as busy, because the load of served
    mixture-of-experts models is uneven (the reason why DeepSeek's EPLB replicates busy experts). Topics are shared,
    since the tokens of a batch come from few requests: 6 of them, with Zipf weights 1/rank. The bias takes back a part
    of the popularity, as auxiliary-loss-free balancing does on average over training (it cannot follow one batch).

    Block scales are log-normal around a size at which the output's standard deviation is some 10: the fp8 codes that
    `random` inputs carry lie in [-2, 2], so an activation scale near 1 gives activations as after an RMSNorm, and a
    weight scale falls with the square root of what it sums over (0.05 at 7168 and 2048), so that the shrunken axes give
    outputs of the same size. At smaller scales a tolerance of 1 would accept all zeros.

    `routing` in axes_and_scalars may be "local": every token goes to experts of this rank, as far as groups allow.
    `seed` in axes_and_scalars (an integer that the workload's uuid gives) fixes every value; the numbers are drawn on
    the CPU, so they are the same on every device. Returns name -> tensor on `device`.
    """
    size = axes_and_scalars
    seq_len, num_experts = size["seq_len"], size["num_experts"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def scale(around, *shape):
        return around * torch.exp(0.25 * normal(*shape))

    popularity = 0.35 * normal(num_experts)
    topics = 0.4 * normal(6, num_experts)
    topic_weights = 1.0 / torch.arange(1, 7)
    topic = torch.multinomial(topic_weights, max(seq_len, 1), replacement=True, generator=generator)[:seq_len]
    logits = popularity + topics[topic] + 0.9 * normal(seq_len, num_experts)
    if size.get("routing") == "local":
        first = size["local_expert_offset"]
        logits[:, first:first + size["num_local_experts"]] += 6.0
    bias = -0.05 * popularity + 0.01 * normal(num_experts)
    local = size["num_local_experts"]
    hidden, intermediate = size["num_hidden_blocks"], size["num_intermediate_blocks"]
    inputs = {
        "routing_logits": logits,
        "routing_bias": bias.to(torch.bfloat16),
        "hidden_states_scale": scale(1.0, hidden, seq_len),
        "gemm1_weights_scale": scale(4.2 * size["hidden_size"] ** -0.5, local, size["num_gemm1_out_blocks"], hidden),
        "gemm2_weights_scale": scale(2.3 * size["intermediate_size"] ** -0.5, local, hidden, intermediate),
    }
    return {name: tensor.contiguous().to(device) for name, tensor in inputs.items()}


def same_work(given, generator):
    """Other contents for a timed call: the tokens in another order."""
    logits, scale = given["routing_logits"], given["hidden_states_scale"]
    order = torch.randperm(len(logits), generator=generator, device=logits.device)
    return {"routing_logits": logits[order], "hidden_states_scale": scale[:, order]}


def count_cost(axes, inputs):
    """Work that no implementation can avoid, from the routing that the inputs hold.

    axes: name -> size. inputs: name -> tensor or number; only routing_logits, routing_bias and local_expert_offset
    are read. Returns flops by dtype, bytes_read, bytes_written (each needed input once, each output once), and facts:
    local_pairs (token, expert) on this rank, active_local_experts, local_tokens, weight_bytes.
    """
    experts, _ = route(inputs["routing_logits"], inputs["routing_bias"], 1.0)
    local = experts - int(inputs["local_expert_offset"])
    on_rank = (local >= 0) & (local < axes["num_local_experts"])
    pairs, tokens = int(on_rank.sum()), int(on_rank.any(1).sum())
    active = int(local[on_rank].unique().numel())
    hidden, intermediate, gemm1_out = axes["hidden_size"], axes["intermediate_size"], axes["gemm1_out_size"]
    weight_bytes = active * (gemm1_out * hidden + hidden * intermediate)
    scale_columns = axes["num_gemm1_out_blocks"] + axes["num_intermediate_blocks"]
    scale_bytes = active * 4 * axes["num_hidden_blocks"] * scale_columns
    routing_bytes = axes["num_experts"] * (4 * axes["seq_len"] + 2)
    activation_bytes = tokens * (hidden + 4 * axes["num_hidden_blocks"])
    return {
        "flops": {"float8_e4m3fn": 2 * pairs * (gemm1_out * hidden + hidden * intermediate)},
        "bytes_read": weight_bytes + scale_bytes + routing_bytes + activation_bytes,
        "bytes_written": 2 * axes["seq_len"] * hidden,
        "facts": {"local_pairs": pairs, "active_local_experts": active, "local_tokens": tokens,
                  "weight_bytes": weight_bytes},
    }
