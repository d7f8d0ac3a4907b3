"""State stage of the chunked gated delta rule, in float32.

Per value head, from one chunk of 64 tokens to the next: h is the state S at the chunk's start, v_new = u - w S, and
S becomes exp(g_last) S + sum over its tokens of exp(g_last - g_i) k_i v_new_i, with g the log decay summed from the
chunk's start: section 3.3 of Gated Delta Networks (arXiv 2412.06464), and chunk_gated_delta_rule_fwd_h of
flash-linear-attention, whose v_new is likewise the one without decay.
"""

import torch

CHUNK = 64

SMALL_AXES = {"num_tokens": 70, "num_chunks": 2, "num_k_heads": 2, "num_v_heads": 4, "state_count": 5, "key_dim": 16,
              "value_dim": 24, "batch_size": 1}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0, "num_chunks": 0}, {"num_tokens": 1, "num_chunks": 1}, {"num_tokens": 64, "num_chunks": 1},
    {"num_tokens": 191, "num_chunks": 3, "state_count": 1}, {"num_k_heads": 1, "num_v_heads": 3},
    {"num_k_heads": 3, "num_v_heads": 3},
]
# Heads of a rank of 1 to 8 GPUs, as many value heads or up to four times as many; a pool of states.
AXES_SPACE = {"num_tokens": (1, 32768), "num_chunks": "-(-num_tokens // 64)", "num_k_heads": [1, 2, 4, 8, 16],
              "_group": [1, 2, 2, 3, 4], "num_v_heads": "_group * num_k_heads", "state_count": (1, 512)}
SMALL_SPACE = {"num_tokens": (1, 260), "num_k_heads": [1, 2, 3], "state_count": (1, 8)}


@torch.no_grad()
def run(k, w, u, g, initial_state, initial_state_indices, chunk_starts):
    num_tokens, heads, value_dim = u.shape
    group = heads // k.shape[1]
    final_state = initial_state.index_select(0, initial_state_indices)
    state = final_state[0]
    h = torch.empty(len(chunk_starts), heads, k.shape[2], value_dim, dtype=k.dtype, device=k.device)
    v_new = torch.empty_like(u)
    for chunk, start in enumerate(range(0, num_tokens, CHUNK)):
        part = slice(start, min(start + CHUNK, num_tokens))
        h[chunk] = state
        values = u[part].float().transpose(0, 1) - w[part].float().transpose(0, 1) @ state
        v_new[part] = values.transpose(0, 1)
        log_decay = g[part].t()
        last = log_decay[:, -1:]
        decayed = values * torch.exp(last - log_decay)[:, :, None]
        keys = k[part].float().repeat_interleave(group, dim=1)
        state = state * torch.exp(last)[:, :, None] + keys.permute(1, 2, 0) @ decayed
    final_state[0] = state
    return h, v_new, final_state


def generate_inputs(axes_and_scalars, device):
    """k, the log decay g, the index of the state and the chunks' first tokens.

    Why k: with w and k both unscaled normal numbers the state explodes, whatever the decay is. The chunk's last token
    takes no decay and alone multiplies the state by -k w: its square grows |k|**2 = 128 times a chunk. In the model k
    has length 1 and w at most 1. Here w is `random`, of length 11, so k has a random direction and length 0.1: the
    product is the model's. Then E |S|**2 changes by exp(2 g_last) + |k|**2 sum exp(2 (g_last - g_i)) a chunk, which
    stays below 1 for every rate above |k|**2 / 2 = 0.005 a token.

    g, float32: a head's rate lies log-uniformly between 0.01 and 1 a token, spread evenly over the heads (as GDN's
    heads start: a rate in (0, 16) times a step of 0.001 to 0.1), and each token's decay is log-normal around it (0.5 in
    the log), since the model computes it from the token. Slow heads keep half of the state from chunk to chunk, and w S
    is there as large as u; in fast ones it is a tenth of it. g is summed from each chunk's first token on.

    initial_state_indices: anywhere in the pool. `seed` fixes every value; drawn on the CPU.
    """
    size = axes_and_scalars
    tokens, heads = size["num_tokens"], size["num_v_heads"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    rate = 0.01 * 100 ** ((torch.arange(heads) + torch.rand(heads, generator=generator)) / heads)
    step = -rate * torch.exp(0.5 * torch.randn(tokens, heads, generator=generator))
    chunks = torch.cat([step, step.new_zeros(-tokens % CHUNK, heads)]).view(-1, CHUNK, heads)
    direction = torch.randn(tokens, size["num_k_heads"], size["key_dim"], generator=generator)
    inputs = {
        "k": (0.1 * torch.nn.functional.normalize(direction, dim=-1)).to(torch.bfloat16),
        "g": chunks.cumsum(1).view(-1, heads)[:tokens].contiguous(),
        "initial_state_indices": torch.randint(size["state_count"], (size["batch_size"],), generator=generator,
                                               dtype=torch.int32),
        "chunk_starts": torch.arange(0, tokens, CHUNK, dtype=torch.int32),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def count_cost(axes, inputs):
    """Two matrix products, differences and decays of v_new and state; exponentials do not count.

    One state of the pool is read and one written. chunk_starts follows from num_tokens: nothing has to read it.
    """
    tokens, heads, states = axes["num_tokens"], axes["num_v_heads"], axes["num_chunks"] * axes["num_v_heads"]
    key_dim, value_dim = axes["key_dim"], axes["value_dim"]
    of_tokens = tokens * heads * (4 * key_dim * value_dim + 2 * value_dim + 1)
    one_state = 4 * heads * key_dim * value_dim
    return {"flops": {"bfloat16": of_tokens + states * 2 * key_dim * value_dim},
            "bytes_read": 2 * tokens * (axes["num_k_heads"] * key_dim + heads * (key_dim + value_dim))
            + 4 * tokens * heads + one_state + 4,
            "bytes_written": 2 * states * key_dim * value_dim + 2 * tokens * heads * value_dim + one_state}
