"""The operator once more, from its written definition: Python loops and float64, nothing shared with the reference."""

import math

import numpy as np


def decode_fp8(code):
    """The value of a float8_e4m3fn byte: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; 0x7F is NaN."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


FP8 = np.array([decode_fp8(code) for code in range(256)])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def naive_route(logits, bias, groups=8, top_groups=4, top_k=8):
    """The route of one token: logits and bias as lists. Returns experts, best first, and their weights, summing to
    1."""
    # In float32, where equal scores are equal.
    affinity = [np.float32(sigmoid(x)) for x in logits]
    score = [a + np.float32(b) for a, b in zip(affinity, bias, strict=True)]
    size = len(logits) // groups
    group_score = []
    for group in range(groups):
        best = sorted(score[group * size : (group + 1) * size], reverse=True)[:2]
        group_score.append(best[0] + best[1])
    allowed = sorted(range(groups), key=lambda group: (-group_score[group], group))[:top_groups]
    candidates = [expert for expert in range(len(logits)) if expert // size in allowed]
    experts = sorted(candidates, key=lambda expert: (-score[expert], expert))[:top_k]
    total = sum(float(affinity[expert]) for expert in experts)
    return experts, [float(affinity[expert]) / total for expert in experts]


def naive_moe(
    routing_logits,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm2_weights,
    gemm2_weights_scale,
    local_expert_offset,
    routed_scaling_factor,
):
    """numpy arrays, fp8 ones as uint8 codes -> float64 [seq_len, hidden_size]."""
    seq_len, hidden = hidden_states.shape
    intermediate = gemm2_weights.shape[2]
    out = np.zeros((seq_len, hidden))
    for token in range(seq_len):
        x = np.array([FP8[hidden_states[token, h]] * hidden_states_scale[h // 128, token] for h in range(hidden)])
        experts, weights = naive_route(routing_logits[token].tolist(), routing_bias.tolist())
        for expert, weight in zip(experts, weights, strict=True):
            local = expert - local_expert_offset
            if not 0 <= local < len(gemm1_weights):
                continue
            gemm1 = naive_product(gemm1_weights[local], gemm1_weights_scale[local], x)
            activated = np.array(
                [gemm1[i] * gemm1[intermediate + i] * sigmoid(gemm1[intermediate + i]) for i in range(intermediate)]
            )
            result = naive_product(gemm2_weights[local], gemm2_weights_scale[local], activated)
            out[token] += weight * routed_scaling_factor * result
    return out


def naive_product(codes, scales, x):
    """The dequantized matrix [rows, columns], 128x128 scales, times the vector x."""
    rows = []
    for row in range(codes.shape[0]):
        total = 0.0
        for block in range(codes.shape[1] // 128):
            columns = slice(128 * block, 128 * block + 128)
            total += float(scales[row // 128, block]) * float(FP8[codes[row, columns]] @ x[columns])
        rows.append(total)
    return np.array(rows)
