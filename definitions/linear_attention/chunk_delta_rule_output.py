"""Output stage of the chunked gated delta rule, in float32.

Within a chunk of 64 tokens, per value head: o_i = scale * (exp(g_i) q_i h + sum over j <= i of
exp(g_i - g_j) (q_i k_j) v_j), with h the state at the chunk's start and g the log decay summed from there: section
3.3 of Gated Delta Networks (arXiv 2412.06464), and chunk_fwd_o of flash-linear-attention.
"""

import torch

CHUNK = 64

SMALL_AXES = {"num_tokens": 70, "num_chunks": 2, "num_q_heads": 2, "num_v_heads": 4, "key_dim": 16, "value_dim": 24}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0, "num_chunks": 0}, {"num_tokens": 1, "num_chunks": 1}, {"num_tokens": 64, "num_chunks": 1},
    {"num_tokens": 191, "num_chunks": 3}, {"num_q_heads": 1, "num_v_heads": 3}, {"num_q_heads": 3, "num_v_heads": 3},
]
# Heads of a rank of 1 to 8 GPUs, as many value heads or up to four times as many.
AXES_SPACE = {"num_tokens": (1, 32768), "num_chunks": "-(-num_tokens // 64)", "num_q_heads": [1, 2, 4, 8, 16],
              "_group": [1, 2, 2, 3, 4], "num_v_heads": "_group * num_q_heads"}
SMALL_SPACE = {"num_tokens": (1, 260), "num_q_heads": [1, 2, 3]}


@torch.no_grad()
def run(q, k, v, h, g):
    num_tokens, num_q_heads, key_dim = q.shape
    group = v.shape[1] // num_q_heads
    output = torch.empty_like(v)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    for chunk, start in enumerate(range(0, num_tokens, CHUNK)):
        part = slice(start, min(start + CHUNK, num_tokens))
        queries = q[part].float().repeat_interleave(group, dim=1).transpose(0, 1)
        keys = k[part].float().repeat_interleave(group, dim=1).transpose(0, 1)
        log_decay = g[part].t()
        size = log_decay.shape[1]
        between = (log_decay[:, :, None] - log_decay[:, None, :]).masked_fill(~causal[:size, :size], float("-inf"))
        scores = queries @ keys.transpose(1, 2) * torch.exp(between)
        total = scores @ v[part].float().transpose(0, 1)
        total += torch.exp(log_decay)[:, :, None] * (queries @ h[chunk].float())
        output[part] = (total * key_dim ** -0.5).transpose(0, 1)
    return output


def generate_inputs(axes_and_scalars, device):
    """The log decay g, float32 [num_tokens, num_v_heads]: the sum from the chunk's first token on, so it falls there.

    A head's rate lies log-uniformly between 0.01 and 1 a token, spread evenly over the heads (as GDN's heads start: a
    rate in (0, 16) times a step of 0.001 to 0.1), and each token's decay is log-normal around it (0.5 in the log),
    since the model computes it from the token. So some heads keep half of the state at a chunk's end, where the
    state's part of the output counts, and others forget within a few tokens. `seed` fixes every value; drawn on the
    CPU.
    """
    tokens, heads = axes_and_scalars["num_tokens"], axes_and_scalars["num_v_heads"]
    generator = torch.Generator().manual_seed(int(axes_and_scalars.get("seed", 0)))
    rate = 0.01 * 100 ** ((torch.arange(heads) + torch.rand(heads, generator=generator)) / heads)
    step = -rate * torch.exp(0.5 * torch.randn(tokens, heads, generator=generator))
    chunks = torch.cat([step, step.new_zeros(-tokens % CHUNK, heads)]).view(-1, CHUNK, heads)
    return {"g": chunks.cumsum(1).view(-1, heads)[:tokens].contiguous().to(device)}


def count_cost(axes, inputs):
    """By whole chunks, as the survey counts: three matrix products without the causal half left out, the decay on both
    parts, the sum and the scale; differences of g and their product count, exponentials do not.
    """
    tokens, heads = axes["num_tokens"], axes["num_v_heads"]
    key_dim, value_dim, states = axes["key_dim"], axes["value_dim"], axes["num_chunks"] * heads
    products = 2 * CHUNK * (key_dim * value_dim + CHUNK * key_dim + CHUNK * value_dim)
    q_and_k = 2 * 2 * tokens * axes["num_q_heads"] * key_dim
    return {"flops": {"bfloat16": states * (products + 3 * CHUNK * value_dim + 2 * CHUNK * CHUNK)},
            "bytes_read": q_and_k + 2 * tokens * heads * value_dim + 2 * states * key_dim * value_dim
            + 4 * tokens * heads,
            "bytes_written": 2 * tokens * heads * value_dim}
