"""Gated delta rule of several sequences, token by token, in float32: decode and prefill as serving engines run them.

The rule is that of gated_delta_rule_update (Gated Delta Networks, arXiv 2412.06464, equation 10). The tokens of all
sequences lie one behind the other, each sequence has a state of the pool, and a state lies [value_dim, key_dim], as in
the kernels of vLLM and FlashInfer.
"""

import torch

EPS = 1e-6  # of the L2 norm
SOFTPLUS_THRESHOLD = 20.0  # above it softplus(x) is x

SMALL_AXES = {"num_tokens": 23, "num_seqs": 3, "len_cu_seqlens": 4, "num_q_heads": 2, "num_v_heads": 4,
              "state_count": 5, "key_dim": 16, "value_dim": 24}
# Decode alone, no sequence, one, a long one among short ones, other heads.
SMALL_VARIANTS = [
    {}, {"num_tokens": 3}, {"num_tokens": 0, "num_seqs": 0, "len_cu_seqlens": 1},
    {"num_tokens": 1, "num_seqs": 1, "len_cu_seqlens": 2, "state_count": 2},
    {"num_tokens": 131, "num_seqs": 1, "len_cu_seqlens": 2}, {"num_tokens": 150}, {"num_tokens": 300, "num_seqs": 2,
                                                                                  "len_cu_seqlens": 3},
    {"num_q_heads": 1, "num_v_heads": 3}, {"num_q_heads": 3, "num_v_heads": 3, "num_tokens": 80},
]
# Decode, drafts of 2 to 8 tokens, ragged prefill; pools with room.
AXES_SPACE = {"num_seqs": (1, 256), "_mean": [1, 1, (2, 8), (1, "max(1, 8192 // num_seqs)")],
              "num_tokens": "num_seqs * _mean", "len_cu_seqlens": "num_seqs + 1", "num_q_heads": [1, 2, 4, 8, 16],
              "_group": [1, 2, 2, 3, 4], "num_v_heads": "_group * num_q_heads", "_spare": (1, 64),
              "state_count": "num_seqs + _spare"}
SMALL_SPACE = {"num_seqs": (1, 5), "_mean": [1, (1, 70)], "num_q_heads": [1, 2, 3], "_spare": (1, 4)}


def unit(x):
    """float32 rows of length one."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + EPS)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens):
    """Step by step: at each the next token of all sequences that have one. The tokens of a step lie together."""
    device, heads, group = v.device, v.shape[1], v.shape[1] // q.shape[1]
    starts = cu_seqlens[:-1].tolist()
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    # The longest first, so that the sequences of a step are the first ones.
    order = sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence])
    steps = [[starts[sequence] + step for sequence in order if lengths[sequence] > step]
             for step in range(max(lengths, default=0))]
    tokens = torch.tensor([token for step in steps for token in step], dtype=torch.int64, device=device)

    def of_heads(x):  # [a token and head, one after the other in the order of steps, 1, ...]
        return x[tokens].flatten(0, 1).unsqueeze(1)

    queries = of_heads((unit(q) * q.shape[2] ** -0.5).repeat_interleave(group, dim=1)).transpose(1, 2)  # columns
    keys = of_heads(unit(k).repeat_interleave(group, dim=1))
    sizes = torch.nn.functional.softplus(a.float() + dt_bias.float(), beta=1.0, threshold=SOFTPLUS_THRESHOLD)
    decay = of_heads(torch.exp(-torch.exp(A_log) * sizes)).unsqueeze(2)
    beta = of_heads(torch.sigmoid(b.float())).unsqueeze(2)
    values, weighted_keys = (beta * of_heads(v.float())).transpose(1, 2), (beta * keys).transpose(1, 2)
    slots = initial_state_indices.long()[torch.tensor(order, dtype=torch.int64, device=device)]
    states = initial_state[slots].flatten(0, 1)  # [a sequence and head, value_dim, key_dim]
    found = torch.empty_like(values)
    end = 0
    for step in steps:
        start, end = end, end + heads * len(step)
        state = states[:end - start]
        state.mul_(decay[start:end])
        correction = torch.baddbmm(values[start:end], state, weighted_keys[start:end], alpha=-1)
        state.baddbmm_(correction, keys[start:end])
        torch.bmm(state, queries[start:end], out=found[start:end])
    output, final_state = torch.empty_like(v), initial_state.clone()
    output[tokens] = found.view(-1, heads, v.shape[2]).to(output.dtype)
    final_state[slots] = states.view(-1, *initial_state.shape[1:])
    return output, final_state


def generate_inputs(axes_and_scalars, device):
    """A_log and dt_bias as gated delta networks start (see gated_delta_rule_update); the first tokens of the sequences,
    and their states: distinct slots of the pool in random order, none of them 0, which engines keep for padding.

    Every sequence has a token. One token each where there are as many tokens as sequences, else ragged: the rest is
    shared out by log-normal weights (1 in the log). `seed` fixes every value; drawn on the CPU.
    """
    size = axes_and_scalars
    heads, tokens, sequences = size["num_v_heads"], size["num_tokens"], size["num_seqs"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    rate = 1 + 15 * torch.rand(heads, generator=generator)
    step = 0.001 * 100 ** torch.rand(heads, generator=generator)
    share = torch.exp(torch.randn(sequences, generator=generator, dtype=torch.float64)).cumsum(0)
    bounds = torch.zeros(sequences + 1, dtype=torch.int64)
    if sequences:
        bounds[1:] = torch.arange(1, sequences + 1) + ((tokens - sequences) * share / share[-1]).round().long()
    inputs = {
        "A_log": torch.log(rate),
        "dt_bias": torch.log(torch.expm1(step)).to(torch.bfloat16),
        "cu_seqlens": bounds.to(torch.int32),
        "initial_state_indices": (torch.randperm(size["state_count"] - 1, generator=generator)[:sequences] + 1).to(
            torch.int32),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def count_cost(axes, inputs):
    """As gated_delta_rule_update: token by token 7 per state element, 2 per value, 1 per key and 2 for the gates.

    The whole pool is read and written, since every state is an output. In place only the sequences' states are.
    """
    tokens, heads, sequences = axes["num_tokens"], axes["num_v_heads"], axes["num_seqs"]
    key_dim, value_dim = axes["key_dim"], axes["value_dim"]
    state = 4 * heads * key_dim * value_dim
    of_tokens = tokens * 2 * (2 * axes["num_q_heads"] * key_dim + heads * value_dim + 2 * heads)
    small = (4 + 2) * heads + 4 * sequences + 4 * (sequences + 1)
    written = 2 * tokens * heads * value_dim
    return {"flops": {"bfloat16": tokens * heads * (7 * key_dim * value_dim + 2 * value_dim + key_dim + 2)},
            "bytes_read": axes["state_count"] * state + of_tokens + small,
            "bytes_written": axes["state_count"] * state + written,
            "bytes_in_place": 2 * sequences * state + of_tokens + small + written}
