"""Gated delta rule, token by token, in float32.

Per value head and token, with q and k of length one: the state S decays, S <- exp(g) S with g = -exp(A_log) *
softplus(a + dt_bias); the delta rule corrects what it holds for k, S <- S + k (beta (v - k S)) with beta = sigmoid(b);
and it is read, o = key_dim**-0.5 q S. Gated Delta Networks (arXiv 2412.06464), equation 10, with the gates computed on
the way, as in the fused_sigmoid_gating_delta_rule_update of serving engines.
"""

import torch

EPS = 1e-6  # of the L2 norm
SOFTPLUS_THRESHOLD = 20.0  # above it softplus(x) is x

SMALL_AXES = {"num_tokens": 5, "num_q_heads": 2, "num_v_heads": 4, "state_count": 3, "key_dim": 16, "value_dim": 24,
              "batch_size": 1}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 1, "state_count": 1}, {"num_tokens": 64},
    {"num_tokens": 131}, {"num_q_heads": 1, "num_v_heads": 3}, {"num_q_heads": 3, "num_v_heads": 3, "num_tokens": 65},
]
# Heads of a rank of 1 to 8 GPUs, as many value heads or up to four times as many; a pool of states. One token, drafts
# and short prefills: token by token is no way for long ones.
AXES_SPACE = {"num_tokens": [1, (2, 8), (1, 2048)], "num_q_heads": [1, 2, 4, 8, 16], "_group": [1, 2, 2, 3, 4],
              "num_v_heads": "_group * num_q_heads", "state_count": (1, 256)}
SMALL_SPACE = {"num_tokens": (1, 140), "num_q_heads": [1, 2, 3], "state_count": (1, 8)}


def unit(x):
    """float32 rows of length one."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + EPS)


@torch.no_grad()
def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
    num_tokens, heads, _ = v.shape
    group = heads // q.shape[1]
    # [num_tokens, num_v_heads, 1, size]: a row vector for each token and head.
    queries = (unit(q) * q.shape[2] ** -0.5).repeat_interleave(group, dim=1).unsqueeze(2)
    keys = unit(k).repeat_interleave(group, dim=1).unsqueeze(2)
    steps = torch.nn.functional.softplus(a.float() + dt_bias.float(), beta=1.0, threshold=SOFTPLUS_THRESHOLD)
    decay = torch.exp(-torch.exp(A_log) * steps)[:, :, None, None]
    beta = torch.sigmoid(b.float())[:, :, None, None]
    values, weighted_keys = beta * v.float().unsqueeze(2), beta * keys
    columns = keys.transpose(2, 3)
    row = initial_state_indices.long()
    state = initial_state[row][0]
    output = torch.empty(num_tokens, heads, 1, v.shape[2], dtype=torch.float32, device=v.device)
    for token in range(num_tokens):
        state.mul_(decay[token])
        correction = torch.baddbmm(values[token], weighted_keys[token], state, alpha=-1)
        state.baddbmm_(columns[token], correction)
        torch.bmm(queries[token], state, out=output[token])
    final_state = initial_state.clone()
    final_state[row] = state
    return output.squeeze(2).to(v.dtype), final_state


def generate_inputs(axes_and_scalars, device):
    """A_log and dt_bias as gated delta networks start: exp(A_log) uniform between 1 and 16, softplus(dt_bias)
    log-uniform between 0.001 and 0.1; and the state's index, anywhere in the pool.

    With the `random` a (normal) a token's decay then lies between exp(-0.0001) and exp(-20), in the middle near
    exp(-0.1). From a normal A_log and dt_bias nearly every head would forget within two tokens. `seed` fixes every
    value; drawn on the CPU.
    """
    size = axes_and_scalars
    heads = size["num_v_heads"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))
    rate = 1 + 15 * torch.rand(heads, generator=generator)
    step = 0.001 * 100 ** torch.rand(heads, generator=generator)
    inputs = {
        "A_log": torch.log(rate),
        "dt_bias": torch.log(torch.expm1(step)).to(torch.bfloat16),
        "initial_state_indices": torch.randint(size["state_count"], (size["batch_size"],), generator=generator,
                                               dtype=torch.int32),
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def count_cost(axes, inputs):
    """Token by token as the survey counts: per state element 7, per value 2, per key 1, and 2 for the gates.

    The whole pool is read and written, since every state is an output. In place only the one state is.
    """
    tokens, heads = axes["num_tokens"], axes["num_v_heads"]
    key_dim, value_dim = axes["key_dim"], axes["value_dim"]
    pool = 4 * axes["state_count"] * heads * key_dim * value_dim
    of_a_token = 2 * (2 * axes["num_q_heads"] * key_dim + heads * value_dim + 2 * heads)
    return {"flops": {"bfloat16": tokens * heads * (7 * key_dim * value_dim + 2 * value_dim + key_dim + 2)},
            "bytes_read": pool + tokens * of_a_token + (4 + 2) * heads + 4,
            "bytes_written": pool + 2 * tokens * heads * value_dim,
            "bytes_in_place": 2 * (pool // axes["state_count"] if axes["state_count"] else 0) + tokens * of_a_token
            + 6 * heads + 4 + 2 * tokens * heads * value_dim}
