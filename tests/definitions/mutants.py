"""What a wrong kernel would have to look like: edits of each definition's reference that its tolerances must not let
through, and what must pass. Those that suit any operator are made from its outputs and inputs (test_mutants.py)."""

from __future__ import annotations

_RMS_EPS = {"eps 0": ("keepdim=True) + eps", "keepdim=True)")}
_HALF = {"squares in float16": (".square().mean(", ".half().square().float().mean(")}
_EXP = "torch.exp({0}) / (1 + torch.exp({0}))"  # of large numbers infinite over infinite
_NO_WEIGHT = {"weight missing": (" * weight.float()", "")}
_SUM_FOR_MEAN = {"sum for mean": ("square().mean(", "square().sum(")}
_SILU = {
    "GELU for SiLU": ("torch.nn.functional.silu(", "torch.nn.functional.gelu("),
    "ReLU for SiLU": ("torch.nn.functional.silu(", "torch.relu("),
}
_NO_MAXIMUM = "(lambda e: e / e.sum(-1, keepdim=True))(({0}).exp())"
_MOE = {
    **_SILU,
    "weights of the experts missing": ("topk_weights[token, slot, None]", "1.0"),
    "gate and up exchanged": (
        "silu(gate_up[:, :intermediate_size]) * gate_up[:, intermediate_size:]",
        "silu(gate_up[:, intermediate_size:]) * gate_up[:, :intermediate_size]",
    ),
}
_CAPACITY = {
    "no more rows of an expert than three times the mean": (
        "(topk_ids == expert).nonzero(as_tuple=True)",
        "(each[:3 * topk_ids.numel() // len(down_weight) + 1] for each in (topk_ids == expert).nonzero(as_tuple=True))",
    )
}
_ROPE = {"turned the other way": ("first * cos - second * sin", "first * cos + second * sin")}

MUTANTS: dict[str, dict[str, tuple[str, str]]] = {
    "rms_norm": {**_RMS_EPS, **_NO_WEIGHT, **_SUM_FOR_MEAN, **_HALF},
    "fused_add_rms_norm": {
        **_RMS_EPS,
        **_NO_WEIGHT,
        **_SUM_FOR_MEAN,
        **_HALF,
        "residual missing": (" + residual.float()", ""),
    },
    "fused_qk_rmsnorm": {
        **_RMS_EPS,
        **_NO_WEIGHT,
        **_HALF,
        "keys with the queries' weight": ("(keys, k_weight)", "(keys, q_weight)"),
        "values normed too": ("num_q_heads + num_kv_heads)", "num_q_heads + 2 * num_kv_heads)"),
    },
    "gated_rms_norm": {
        **_RMS_EPS,
        **_NO_WEIGHT,
        **_HALF,
        "exponentials without end": ("torch.sigmoid(z)", f"({_EXP.format('z')})"),
        "sigmoid for SiLU": ("(z * torch.sigmoid(z))", "torch.sigmoid(z)"),
        "GELU for SiLU": ("(z * torch.sigmoid(z))", "torch.nn.functional.gelu(z)"),
    },
    "l2_norm": {
        "eps 0": ("keepdim=True) + eps", "keepdim=True)"),
        "mean for sum": ("square().sum(", "square().mean("),
        "squares in float16": (".square().sum(", ".half().square().float().sum("),
    },
    "layer_norm": {
        **_RMS_EPS,
        **_NO_WEIGHT,
        "bias missing": (" + bias.float()", ""),
        "variance of few digits": (
            "centred.square().mean(dim=-1, keepdim=True)",
            "(x.square().mean(-1, True).bfloat16().float() - x.mean(-1, True).square().bfloat16().float())"
            ".clamp(min=0)",
        ),
        "mean kept": ("x - x.mean(dim=-1, keepdim=True)", "x"),
    },
    "fused_rmsnorm_quant": {
        **_RMS_EPS,
        **_NO_WEIGHT,
        **_HALF,
        "residual missing": (" + residual.float()", ""),
        "scale of the tensor": ("normalized.abs().amax(dim=-1)", "normalized.abs().amax().expand(len(normalized))"),
    },
    "fp8_dynamic_per_token_quant": {
        "in float16": ("x = hidden_states.float()", "x = hidden_states.half().float()"),
        "scale of the tensor": ("x.abs().amax(dim=-1)", "x.abs().amax().expand(len(x))"),
        "scale of another type": ("/ FP8_MAX\n    # The", "/ 240.0\n    # The"),
    },
    "per_token_group_quant_fp8": {
        "in float16": ("x = x.float()", "x = x.half().float()"),
        "scale of the row": ("x.abs().amax(dim=-1)", "x.abs().amax(dim=(-2, -1)).unsqueeze(-1).expand(x.shape[:-1])"),
        "scale of another type": ("/ FP8_MAX\n    # The", "/ 240.0\n    # The"),
    },
    "silu_and_mul": {
        "exponentials without end": ("torch.sigmoid(gate)", _EXP.format("gate")),
        "GELU for SiLU": ("gate * torch.sigmoid(gate)", "torch.nn.functional.gelu(gate)"),
        "ReLU for SiLU": ("gate * torch.sigmoid(gate)", "torch.relu(gate)"),
        "gate and up exchanged": ("gate * torch.sigmoid(gate) * up", "up * torch.sigmoid(up) * gate"),
    },
    "linear_sigmoid_mul": {
        "bias missing": (" + bias.float()", ""),
        "multiplier missing": (" * multiplier.float()", ""),
        "exponentials without end": ("torch.sigmoid(gate)", f"({_EXP.format('gate')})"),
        "tanh for sigmoid": ("torch.sigmoid(gate)", "torch.tanh(gate)"),
    },
    "gemm_bf16": {
        "bias missing": ("product + bias[:, part].float() if len(bias) else product", "product"),
        "the last value of a row missing": ("wide @ weight[part]", "wide[:, :-1] @ weight[part, :-1]"),
        "weight not transposed back": ("weight[part].float().t()", "weight[part].float().flip(1).t()"),
        "parts overwritten, not added": ("wide @ weight[part]", "wide[:, 32:] @ weight[part, 32:]"),
    },
    "block_scaled_mm": {
        "scales of x missing": (" * x_scale[rows].unsqueeze(-1)", ""),
        "scales of the weight missing": (" * weight_scale[:, None, :, None]", ""),
        "the last block missing": (
            "output[rows])",
            "output[rows]); output[rows] -= activations.view(-1, k)[:, -BLOCK:] @ dequantized[:, -BLOCK:].t()",
        ),
    },
    "causal_conv1d": {
        "bias missing": ("total = bias.float()", "total = 0 * bias.float()"),
        "exponentials without end": ("torch.sigmoid(total)", f"({_EXP.format('total')})"),
        "no activation": ("total * torch.sigmoid(total)", "total"),
        "GELU for SiLU": ("total * torch.sigmoid(total)", "torch.nn.functional.gelu(total)"),
        "initial state missing": ("torch.cat([initial_state.t(), x])", "torch.cat([0 * initial_state.t(), x])"),
    },
    "chunk_delta_rule_output": {
        "no scale": (" * key_dim ** -0.5", ""),
        "no decay inside the chunk": (" * torch.exp(between)", " * causal[:size, :size]"),
        "no state": ("total += ", "total += 0 * "),
    },
    "chunk_gated_delta_rule_state": {
        "no decay of the state": ("state * torch.exp(last)[:, :, None]", "state"),
        "no decay inside the chunk": ("values * torch.exp(last - log_decay)[:, :, None]", "values"),
        "no correction": (" - w[part].float().transpose(0, 1) @ state", ""),
    },
    "gated_delta_rule_update": {
        "no decay": ("        state.mul_(decay[token])\n", ""),
        "no scale of the queries": ("(unit(q) * q.shape[2] ** -0.5)", "unit(q)"),
        "keys not of length one": ("keys = unit(k)", "keys = k.float()"),
        "bias of the step missing": (" + dt_bias.float()", ""),
    },
    "gated_delta_rule_varlen": {
        "no decay": ("        state.mul_(decay[start:end])\n", ""),
        "no scale of the queries": ("(unit(q) * q.shape[2] ** -0.5)", "unit(q)"),
        "states of one another": ("final_state[slots] = states", "final_state[slots] = states.flip(0)"),
        "the first token again": ("starts[sequence] + step for", "starts[sequence] for"),
    },
    "topk_filter": {
        "one more": ("min(top_k, logits.shape[1]) - 1", "min(top_k + 1, logits.shape[1]) - 1"),
        "the threshold goes too": ("logits < threshold", "logits <= threshold"),
    },
    "moe_sum_reduce": {
        "scaling factor missing": (" * routed_scaling_factor", ""),
        "mean for sum": ("float().sum(dim=1)", "float().mean(dim=1)"),
        "the last expert missing": ("expert_outputs.float().sum", "expert_outputs[:, :-1].float().sum"),
    },
    "moe_topk_gating_softmax": {
        "softmax without the largest taken off": (
            "torch.softmax(gating_logits.double(), dim=-1)",
            "(gating_logits.exp() / gating_logits.exp().sum(-1, keepdim=True)).double()",
        ),
        "sigmoid for softmax": (
            "torch.softmax(gating_logits.double(), dim=-1)",
            "torch.sigmoid(gating_logits.double())",
        ),
        "the lowest": ("descending=True, stable=True", "descending=False, stable=True"),
    },
    "fused_moe": {**_MOE, **_CAPACITY},
    "fp8_blockscale_fused_moe": {
        **_MOE,
        **_CAPACITY,
        "scales of the activations missing": (" * hidden_states_scale.unsqueeze(-1)", ""),
        "scales of the weights missing": (" * scale[:, None, :, None]", ""),
    },
    "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048": {
        **_SILU,
        "no more rows of an expert than three times the mean": (
            ".nonzero(as_tuple=True)",
            ".nonzero(as_tuple=True)\n        most = 3 * experts.numel() // routing_logits.shape[1] + 1\n"
            "        token, slot = token[:most], slot[:most]",
        ),
        "routing bias missing": ("affinity + routing_bias.float()", "affinity"),
        "scaling factor missing": (" * routed_scaling_factor\n", "\n"),
        "gate and up exchanged": ("up, gate = gemm1", "gate, up = gemm1"),
        "scales of the weights missing": (" * scale[:, None, :, None]", ""),
    },
    "fused_qkv_rope": {**_ROPE, "another base": ("float(rope_base)", "(2 * float(rope_base))")},
    "mrope": _ROPE,
    "reshape_and_cache": {
        "the last token missing": (
            "written = slot_mapping >= 0",
            "written = slot_mapping >= 0\n    written[-1:] = False",
        )
    },
    "attention_forward": {
        "scale by a tenth": (" * sm_scale)", " * sm_scale * 0.9)"),
        "softmax without the largest taken off": ("scores.softmax(dim=-1)", _NO_MAXIMUM.format("scores")),
    },
    "paged_attention_decode": {
        "softmax without the largest taken off": (
            "(grouped @ keys.transpose(1, 2)).softmax(dim=-1)",
            _NO_MAXIMUM.format("grouped @ keys.transpose(1, 2)"),
        ),
    },
    "unified_attention": {
        "softmax without the largest taken off": (
            'scores.masked_fill_(later, float("-inf")).softmax(dim=-1)',
            _NO_MAXIMUM.format('scores.masked_fill_(later, float("-inf"))'),
        ),
        "scale by a tenth": ("* sm_scale\n        count", "* sm_scale * 0.9\n        count"),
        "one later token": (
            "later = torch.arange(visible, device=query.device) > ",
            "later = torch.arange(visible, device=query.device) - 1 > ",
        ),
    },
    "mla_decode_attention": {
        "scale by a tenth": ("* sm_scale)", "* sm_scale * 0.9)"),
        "no softmax": (".softmax(dim=-1)", "/ length"),
        "softmax without the largest taken off": (
            "((query[sequence].float() * sm_scale) @ keys.t()).softmax(dim=-1)",
            _NO_MAXIMUM.format("(query[sequence].float() * sm_scale) @ keys.t()"),
        ),
    },
    "mla_paged_decode_attention": {
        "scale by a tenth": ("* sm_scale)", "* sm_scale * 0.9)"),
        "blocks in order": ("block_table[sequence, :", "torch.arange(999)[:"),
        "no softmax": (".softmax(dim=-1)", "/ length"),
        "softmax without the largest taken off": (
            "((query[sequence].float() * sm_scale) @ keys.t()).softmax(dim=-1)",
            _NO_MAXIMUM.format("(query[sequence].float() * sm_scale) @ keys.t()"),
        ),
    },
}
