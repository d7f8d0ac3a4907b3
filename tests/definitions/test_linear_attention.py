"""Linear attention: the references against other formulations in float64, generated inputs, and costs by hand.

The chunked stages token by token, and both together against the token-by-token update; the update against one
triangular system over all its tokens; the convolution against torch.nn.functional.conv1d.
"""

import itertools
import math

import pytest
import torch
from linear_attention_forms import CONV, OUTPUT, STATE, UPDATE, by_head, decay_matrix, gates, normalized
from operators import CATALOG, close, inputs_at, load, outputs_of, small_variants

from kernelderby.measure.judge.cases import case_of_workload

# The references -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes"), small_variants(CONV))
def test_causal_conv1d_agrees_with_a_loop(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    if len(output) == 0:
        return
    x, weight, bias, state = (inputs[key].double() for key in ("x", "weight", "bias", "initial_state"))
    sequence = torch.cat([state, x.t()], dim=1).unsqueeze(0)
    expected = torch.nn.functional.conv1d(sequence, weight.unsqueeze(1), bias, groups=len(weight))
    close(output, torch.nn.functional.silu(expected)[0].t())


def test_convolution_by_hand():
    """Two tokens, one channel: taps 1, 10, 100, 1000 on the state 1, 2, 3 and the tokens 4 and 5."""
    inputs = inputs_at(CONV, num_tokens=2, dim=1)
    inputs["weight"][0] = torch.tensor([1.0, 2.0, 4.0, 8.0])
    inputs["initial_state"][0] = torch.tensor([1.0, 2.0, 3.0])
    inputs["x"][:, 0] = torch.tensor([4.0, 5.0])
    inputs["bias"][0] = -48.0
    (found,) = outputs_of(CONV, inputs)
    first, second = 1 + 4 + 12 + 32 - 48, 2 + 6 + 16 + 40 - 48
    close(found, torch.tensor([[x / (1 + math.exp(-x))] for x in (first, second)], dtype=torch.float64))


@pytest.mark.parametrize(("name", "changes"), small_variants(OUTPUT))
def test_the_chunks_output_agrees_with_the_recurrence(name, changes):
    """Against the recurrence without a correction: S <- exp(g) S + k v, read by q."""
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    heads = output.shape[1]
    q, k, v = (by_head(inputs[key], heads) for key in ("q", "k", "v"))
    expected = torch.zeros(v.shape, dtype=torch.float64)
    for token in range(len(output)):
        if token % 64 == 0:
            state, before = inputs["h"][token // 64].double(), torch.zeros(heads, dtype=torch.float64)
        log_decay = inputs["g"][token].double()
        state = state * torch.exp(log_decay - before)[:, None, None] + k[:, token, :, None] * v[:, token, None, :]
        expected[:, token] = torch.einsum("hk,hkv->hv", q[:, token], state) / math.sqrt(q.shape[2])
        before = log_decay
    close(output, expected.transpose(0, 1))


def sequential_state(inputs):
    """h, v_new, final state in float64, value by value: what a token adds decays to each later chunk."""
    k, w, u = (by_head(inputs[key], inputs["u"].shape[1]) for key in ("k", "w", "u"))
    g = inputs["g"].double().t()
    state = inputs["initial_state"][int(inputs["initial_state_indices"])].double()
    states, values = [], torch.zeros(u.shape, dtype=torch.float64)
    for token in range(u.shape[1]):
        if token % 64 == 0:
            states.append(state)
            state = state.clone()
            before = torch.zeros(len(g), dtype=torch.float64)
        values[:, token] = u[:, token] - torch.einsum("hk,hkv->hv", w[:, token], states[-1])
        state *= torch.exp(g[:, token] - before)[:, None, None]
        state += k[:, token, :, None] * values[:, token, None, :]
        before = g[:, token]
    return states, values.transpose(0, 1), state


@pytest.mark.parametrize(("name", "changes"), small_variants(STATE))
def test_the_chunks_states_agree_with_the_recurrence(name, changes):
    inputs = inputs_at(name, **changes)
    h, v_new, final_state = outputs_of(name, inputs)
    states, values, last = sequential_state(inputs)
    assert len(h) == len(states)
    for found, expected in zip(h, states, strict=True):
        close(found, expected)
    close(v_new, values)
    torch.testing.assert_close(final_state[0].double(), last, rtol=1e-5, atol=1e-6)


def as_one_system(inputs):
    """Output and final state in float64, all tokens at once: (1 + tril(beta k k' decay, -1)) c = beta (v - decay k S)
    for the corrections c."""
    q, k = normalized(inputs)
    v = by_head(inputs["v"], inputs["v"].shape[1])
    step, beta = gates(inputs)
    g = step.cumsum(1)
    start = inputs["initial_state"][int(inputs["initial_state_indices"])].double()
    between, passed = decay_matrix(g), g.exp().unsqueeze(-1)
    system = torch.eye(v.shape[1], dtype=torch.float64) + (beta.unsqueeze(-1) * (k @ k.mT) * between).tril(-1)
    corrections = torch.linalg.inv(system) @ (beta.unsqueeze(-1) * (v - passed * (k @ start)))
    output = (passed * (q @ start) + (q @ k.mT * between) @ corrections) / math.sqrt(q.shape[2])
    if v.shape[1]:
        to_the_end = (g[:, -1:] - g).exp().unsqueeze(-1)
        start = passed[:, -1:] * start + (k * to_the_end).mT @ corrections
    final = inputs["initial_state"].double()
    final[int(inputs["initial_state_indices"])] = start
    return output.transpose(0, 1), final


@pytest.mark.parametrize(("name", "changes"), small_variants(UPDATE))
def test_the_update_agrees_with_one_linear_system(name, changes):
    inputs = inputs_at(name, **changes)
    output, final_state = outputs_of(name, inputs)
    expected, states = as_one_system(inputs)
    close(output, expected)
    torch.testing.assert_close(final_state.double(), states, rtol=1e-5, atol=1e-6)
    others = [row for row in range(len(final_state)) if row != int(inputs["initial_state_indices"])]
    assert torch.equal(final_state[others], inputs["initial_state"][others])


@pytest.mark.parametrize(("name", "changes"), small_variants("gated_delta_rule_varlen"))
def test_varlen_is_the_update_of_each_sequence(name, changes):
    """With states transposed; states without a sequence stay."""
    inputs = inputs_at(name, **changes)
    output, final_state = outputs_of(name, inputs)
    offsets, slots = inputs["cu_seqlens"].tolist(), inputs["initial_state_indices"].tolist()
    assert all(first < end for first, end in itertools.pairwise(offsets)) and 0 not in slots
    update = load(UPDATE)
    for (first, end), slot in zip(itertools.pairwise(offsets), slots, strict=True):
        of_tokens = {key: inputs[key][first:end] for key in ("a", "q", "k", "v", "b")}
        turned, index = inputs["initial_state"].transpose(2, 3).contiguous(), torch.tensor([slot], dtype=torch.int32)
        expected, states = update.run(
            inputs["A_log"],
            of_tokens["a"],
            inputs["dt_bias"],
            *(of_tokens[key] for key in ("q", "k", "v", "b")),
            initial_state=turned,
            initial_state_indices=index,
        )
        torch.testing.assert_close(output[first:end], expected, rtol=0.01, atol=1e-6)
        torch.testing.assert_close(final_state[slot], states[slot].transpose(1, 2))
    others = [slot for slot in range(len(final_state)) if slot not in slots]
    assert torch.equal(final_state[others], inputs["initial_state"][others])


def test_the_chunked_stages_together_are_the_update():
    """w and u from the update's inputs, then state stage and output stage: the same outputs and the same state."""
    inputs = inputs_at(UPDATE, num_tokens=150)
    output, final_state = outputs_of(UPDATE, inputs)
    heads = output.shape[1]
    q, k = normalized(inputs)
    step, beta = gates(inputs)
    g = torch.cat([part.cumsum(1) for part in step.split(64, dim=1)], dim=1)
    w, u = torch.zeros_like(k), torch.zeros_like(by_head(inputs["v"], heads))
    for start in range(0, 150, 64):
        part = slice(start, start + 64)
        weight, keys, log_decay = beta[:, part, None], k[:, part], g[:, part]
        inverse = torch.linalg.inv(
            torch.eye(keys.shape[1], dtype=torch.float64)
            + (weight * (keys @ keys.mT) * decay_matrix(log_decay)).tril(-1)
        )
        w[:, part] = inverse @ (weight * log_decay.exp().unsqueeze(-1) * keys)
        u[:, part] = inverse @ (weight * by_head(inputs["v"], heads)[:, part])
    tokens_first = {
        key: x.transpose(0, 1).float().contiguous()
        for key, x in {"k": k, "w": w, "u": u, "q": q, "g": g.unsqueeze(-1)}.items()
    }
    log_decay = tokens_first["g"].squeeze(-1)
    h, v_new, last = load(STATE).run(
        tokens_first["k"],
        tokens_first["w"],
        tokens_first["u"],
        log_decay,
        inputs["initial_state"],
        inputs["initial_state_indices"],
        torch.arange(0, 150, 64, dtype=torch.int32),
    )
    row = int(inputs["initial_state_indices"])
    torch.testing.assert_close(last[0], final_state[row], rtol=1e-4, atol=1e-5)
    found = load(OUTPUT).run(tokens_first["q"], tokens_first["k"], v_new, h, log_decay)
    torch.testing.assert_close(found, output.float(), rtol=2**-8, atol=1e-5)


# Inputs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OUTPUT, STATE])
def test_log_decay_falls_within_each_chunk_and_starts_anew(name):
    g = inputs_at(name, num_tokens=191, num_chunks=3)["g"]
    assert g.dtype is torch.float32 and (g < 0).all()
    steps = g.diff(dim=0)
    starts = torch.arange(190) % 64 == 63
    assert (steps[~starts] < 0).all() and (g[::64] > g[63:190:64].amin(0)).all()


def generated(name, workload):
    case = case_of_workload(CATALOG.definition(name), workload)
    return load(name).generate_inputs({**case.sizes, **case.scalars, "seed": case.seed}, torch.device("cpu"))


@pytest.mark.parametrize("name", [OUTPUT, STATE, UPDATE])
def test_generated_inputs_are_fixed_by_the_seed(name):
    workload = CATALOG.workloads(name)[0]
    first, again = generated(name, workload), generated(name, workload)
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = generated(name, CATALOG.workloads(name)[1])
    assert all(
        not torch.equal(first[key][:1], other[key][:1])
        for key in first
        if key not in ("chunk_starts", "initial_state_indices")
    )


def test_generated_inputs_of_state_workloads_but_the_largest():
    for workload in CATALOG.workloads(STATE):
        if workload.axes["num_tokens"] * workload.axes["num_k_heads"] > 32768:
            continue
        inputs, axes = generated(STATE, workload), workload.axes
        assert 0 <= int(inputs["initial_state_indices"]) < axes["state_count"]
        assert len(inputs["chunk_starts"]) == axes["num_chunks"] == -(-axes["num_tokens"] // 64)
        lengths = inputs["k"].float().norm(dim=-1)
        assert (lengths > 0.098).all() and (lengths < 0.102).all()
        mean_rate = -inputs["g"][63::64].mean(0) / 64
        assert (mean_rate > 0.005).all() and mean_rate.min() < 0.2 < mean_rate.max()


@pytest.mark.parametrize("workload", CATALOG.workloads(UPDATE)[:3], ids=lambda one: one.uuid[:8])
def test_gates_of_the_update_are_a_models(workload):
    inputs = generated(UPDATE, workload)
    assert 0 <= int(inputs["initial_state_indices"]) < workload.axes["state_count"]
    rate, step = inputs["A_log"].exp(), torch.nn.functional.softplus(inputs["dt_bias"].float())
    assert (rate >= 0.999).all() and (rate <= 16.01).all() and (step > 0.00095).all() and (step < 0.105).all()


def test_the_state_stays_bounded_over_many_chunks():
    """The longest workload's 384 chunks with a w of full length, and it holds what the tolerances can judge."""
    inputs = inputs_at(STATE, num_tokens=24576, num_chunks=384, num_k_heads=1, num_v_heads=2, key_dim=32, value_dim=8)
    h, v_new, _ = outputs_of(STATE, inputs)
    size = h.float().square().mean((2, 3)).sqrt()
    assert (size[0] > 0.7).all() and (size[50:] < 0.6).all() and (size[50:] > 0.01).all()
    w_s = v_new.float() - inputs["u"].float()
    assert (w_s[64 * 50 :].square().mean((0, 2)).sqrt() > 0.05).all() and v_new.isfinite().all()


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flops", "read", "written"),
    [
        (CONV, 5 * 99 * 12, 2 * (5 * 99 + 99 * (4 + 1 + 3)), 2 * 5 * 99),
        # 2 chunks x 4 heads: q h, q k and scores v; decay and sum and scale; difference and decay of the scores.
        (
            OUTPUT,
            8 * (2 * 64 * 16 * 24 + 2 * 64 * 64 * 16 + 2 * 64 * 64 * 24 + 3 * 64 * 24 + 2 * 64 * 64),
            2 * (2 * 70 * 2 * 16 + 70 * 4 * 24 + 2 * 4 * 16 * 24) + 4 * 70 * 4,
            2 * 70 * 4 * 24,
        ),
        # 70 tokens x 4 heads: w S, k v, difference, decay; 2 chunks x 4 heads: decay and sum of the state.
        (
            STATE,
            280 * (2 * 16 * 24 + 2 * 16 * 24 + 2 * 24 + 1) + 8 * 2 * 16 * 24,
            2 * 70 * (2 * 16 + 4 * 16 + 4 * 24) + 4 * 280 + 4 * 4 * 16 * 24 + 4,
            2 * 8 * 16 * 24 + 2 * 280 * 24 + 4 * 4 * 16 * 24,
        ),
        # 5 tokens x 4 heads; three states in and out.
        (
            UPDATE,
            20 * (7 * 16 * 24 + 2 * 24 + 16 + 2),
            3 * 4 * 4 * 16 * 24 + 5 * 2 * (2 * 2 * 16 + 4 * 24 + 2 * 4) + 4 * 4 + 2 * 4 + 4,
            3 * 4 * 4 * 16 * 24 + 5 * 2 * 4 * 24,
        ),
    ],
)
def test_cost_at_small_axes(name, flops, read, written):
    module = load(name)
    found = module.count_cost(module.SMALL_AXES, {})
    if name == UPDATE:  # two of the three states neither in nor out
        assert found.pop("bytes_in_place") == read + written - 2 * 2 * 4 * 4 * 16 * 24
    assert found == {"flops": {"bfloat16": flops}, "bytes_read": read, "bytes_written": written}
