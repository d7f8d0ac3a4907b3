"""Linear attention: mistakes that the tolerances catch, and the roundings of bfloat16 kernels that they let through."""

import pytest
import torch
from linear_attention_forms import CONV, OUTPUT, STATE, UPDATE, by_head, decay_matrix, gates, normalized
from operators import CATALOG, inputs_at, outputs_of

from kernelderby.measure.judge.correctness import compare
from kernelderby.rows.measurement import Status


def judged(name, found, expected):
    names = list(CATALOG.definition(name).outputs)
    return compare(
        CATALOG.definition(name), dict(zip(names, found, strict=True)), dict(zip(names, expected, strict=True))
    )


def changed(inputs, **others):
    return {**inputs, **others}


LARGE = {
    CONV: {"num_tokens": 300, "dim": 256},
    OUTPUT: {"num_tokens": 300, "num_chunks": 5, "key_dim": 128, "value_dim": 128},
    STATE: {"num_tokens": 300, "num_chunks": 5, "key_dim": 128, "value_dim": 128},
    UPDATE: {"num_tokens": 100, "key_dim": 128, "value_dim": 128},
}
WRONG_INPUTS = [
    (CONV, "without a bias", lambda i: changed(i, bias=0 * i["bias"])),
    (CONV, "taps reversed", lambda i: changed(i, weight=i["weight"].flip(1))),
    (CONV, "no initial state", lambda i: changed(i, initial_state=0 * i["initial_state"])),
    (CONV, "state reversed", lambda i: changed(i, initial_state=i["initial_state"].flip(1))),
    (OUTPUT, "states of the next chunk", lambda i: changed(i, h=i["h"].roll(-1, 0))),
    (OUTPUT, "without states", lambda i: changed(i, h=0 * i["h"])),
    (OUTPUT, "without decay", lambda i: changed(i, g=0 * i["g"])),
    (OUTPUT, "keys and queries changed over", lambda i: changed(i, q=i["k"], k=i["q"])),
    (OUTPUT, "other heads' queries", lambda i: changed(i, q=i["q"].flip(1))),
    (OUTPUT, "decay one token late", lambda i: changed(i, g=torch.cat([0 * i["g"][:1], i["g"][:-1]]))),
    (STATE, "another state", lambda i: changed(i, initial_state=i["initial_state"].roll(1, 0))),
    (STATE, "without decay", lambda i: changed(i, g=0 * i["g"])),
    (STATE, "without correction", lambda i: changed(i, w=0 * i["w"])),
    (STATE, "other heads' keys", lambda i: changed(i, k=i["k"].flip(1))),
    (STATE, "decay one token late", lambda i: changed(i, g=torch.cat([0 * i["g"][:1], i["g"][:-1]]))),
    (UPDATE, "another state", lambda i: changed(i, initial_state=i["initial_state"].roll(1, 0))),
    (UPDATE, "without decay", lambda i: changed(i, A_log=i["A_log"] - 100)),
    (UPDATE, "without dt_bias", lambda i: changed(i, dt_bias=0 * i["dt_bias"])),
    (UPDATE, "correction in full", lambda i: changed(i, b=i["b"] + 100)),
    (UPDATE, "other heads' keys", lambda i: changed(i, k=i["k"].flip(1))),
]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, _, wrong in WRONG_INPUTS],
    ids=[f"{name}-{label}" for name, label, _ in WRONG_INPUTS],
)
def test_a_wrong_computation_fails(name, wrong):
    """Each stands for an implementation with one mistake: the reference on inputs that make it."""
    inputs = inputs_at(name, **LARGE[name])
    expected = outputs_of(name, inputs)
    assert judged(name, expected, expected).status is Status.PASSED
    assert judged(name, outputs_of(name, wrong(inputs)), expected).status is Status.WRONG_VALUES


@pytest.mark.parametrize(
    ("name", "output"), [(name, at) for name in LARGE for at in range(len(CATALOG.definition(name).outputs))]
)
def test_zeros_and_a_tenth_too_much_fail_for_each_output(name, output):
    expected = outputs_of(name, inputs_at(name, **LARGE[name]))
    for factor in (0.0, 1.1):
        found = [value * factor if at == output else value for at, value in enumerate(expected)]
        assert judged(name, found, expected).status is Status.WRONG_VALUES


@pytest.mark.parametrize("name", [OUTPUT, STATE, UPDATE])
def test_a_wrong_last_token_fails(name):
    """A tail that a kernel forgets: the last chunk's last token."""
    expected = outputs_of(name, inputs_at(name, **LARGE[name]))
    at = list(CATALOG.definition(name).outputs).index("v_new" if name == STATE else "output")
    found = [value.clone() for value in expected]
    found[at][-1] = 0
    assert judged(name, found, expected).status is Status.WRONG_VALUES


def test_decayed_values_and_states_after_the_chunk_fail():
    inputs = inputs_at(STATE, **LARGE[STATE])
    h, v_new, final_state = outputs_of(STATE, inputs)
    after = torch.cat([h[1:], final_state.to(h.dtype)])
    assert judged(STATE, (after, v_new, final_state), (h, v_new, final_state)).status is Status.WRONG_VALUES
    ends = torch.tensor([min(token // 64 * 64 + 63, 299) for token in range(300)])
    decayed = (v_new * torch.exp(inputs["g"][ends] - inputs["g"]).unsqueeze(-1)).to(v_new.dtype)
    assert judged(STATE, (h, decayed, final_state), (h, v_new, final_state)).status is Status.WRONG_VALUES


def half(x):
    """Rounded to bfloat16."""
    return x.to(torch.bfloat16).to(x.dtype)


def bfloat16_output(inputs):
    """As fused kernels do: scores with decay rounded before the second product, everything else in float32."""
    v = inputs["v"]
    parts = []
    for chunk, start in enumerate(range(0, len(v), 64)):
        q, k, values = (by_head(inputs[key][start : start + 64], v.shape[1]).float() for key in ("q", "k", "v"))
        g = inputs["g"][start : start + 64].t()
        total = g.exp().unsqueeze(-1) * (q @ inputs["h"][chunk].float()) + half(q @ k.mT * decay_matrix(g)) @ values
        parts.append((total * q.shape[2] ** -0.5).transpose(0, 1))
    return (torch.cat(parts).to(v.dtype),)


def bfloat16_state(inputs):
    """Likewise: w S from the bfloat16 copy, decayed values rounded before the product with k."""
    state = inputs["initial_state"][int(inputs["initial_state_indices"])]
    states, values = [], []
    for start in range(0, len(inputs["u"]), 64):
        k, w, u = (by_head(inputs[key][start : start + 64], len(state)).float() for key in ("k", "w", "u"))
        g = inputs["g"][start : start + 64].t()
        states.append(state.to(torch.bfloat16))
        new = u - w @ states[-1].float()
        values.append(new.transpose(0, 1))
        state = state * g[:, -1:, None].exp() + k.mT @ half(new * (g[:, -1:] - g).exp().unsqueeze(-1))
    return torch.stack(states), torch.cat(values).to(torch.bfloat16), state.unsqueeze(0)


def bfloat16_update(inputs):
    """One chunk as the chunked kernels compute it: w, u, keys, state and corrections rounded before each product."""
    q, k = (half(x.float()) for x in normalized(inputs))
    v = by_head(inputs["v"], inputs["v"].shape[1]).float()
    step, beta = (x.float() for x in gates(inputs))
    g, beta = step.cumsum(1), beta.unsqueeze(-1)
    between, passed = decay_matrix(g), g.exp().unsqueeze(-1)
    inverse = half(torch.linalg.inv(torch.eye(v.shape[1]) + (beta * (k @ k.mT) * between).tril(-1)))
    row = int(inputs["initial_state_indices"])
    start = inputs["initial_state"][row]
    w, u = half(inverse @ half(beta * passed * k)), half(inverse @ half(beta * v))
    corrections = u - w @ half(start)
    output = (passed * (q @ half(start)) + half(q @ k.mT * between) @ half(corrections)) * q.shape[2] ** -0.5
    final = inputs["initial_state"].clone()
    final[row] = passed[:, -1:] * start + k.mT @ half(corrections * (g[:, -1:] - g).exp().unsqueeze(-1))
    return output.transpose(0, 1).to(torch.bfloat16), final


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "rounded", "tokens"),
    [
        (OUTPUT, bfloat16_output, 300),
        (STATE, bfloat16_state, 300),
        (STATE, bfloat16_state, 2048),
        (UPDATE, bfloat16_update, 1),
        (UPDATE, bfloat16_update, 64),
    ],
)
def test_roundings_to_bfloat16_pass(name, rounded, tokens, seed):
    sizes = {"num_tokens": tokens, "num_chunks": -(-tokens // 64)} if name != UPDATE else {"num_tokens": tokens}
    inputs = inputs_at(name, seed=seed, **{**LARGE[name], **sizes})
    verdict = judged(name, rounded(inputs), outputs_of(name, inputs))
    assert verdict.status is Status.PASSED, verdict.message


def test_a_rounding_before_silu_passes():
    inputs = inputs_at(CONV, num_tokens=1000, dim=512)
    history = torch.cat([inputs["initial_state"].t(), inputs["x"]]).float()
    total = (
        sum(inputs["weight"][:, tap].float() * history[tap : tap + 1000] for tap in range(4)) + inputs["bias"].float()
    )
    found = torch.nn.functional.silu(half(total)).to(torch.bfloat16)
    assert judged(CONV, (found,), outputs_of(CONV, inputs)).status is Status.PASSED
