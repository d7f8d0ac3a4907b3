"""Gated delta rule in Triton: token by token where each sequence has one, else in chunks of 64."""

import importlib
import os

__path__ = [os.path.dirname(__file__)]
contract = importlib.import_module(f"{__name__}.contract")
delta_rule_triton = importlib.import_module(f"{__name__}.delta_rule_triton")


check = contract.Contract("derby_gated_delta_rule_varlen_triton", on_current=True,
    where=("num_v_heads a multiple of num_q_heads", "len_cu_seqlens == num_seqs + 1"),
    A_log="float32 num_v_heads", a="bfloat16 num_tokens num_v_heads", dt_bias="bfloat16 num_v_heads",
    q="bfloat16 num_tokens num_q_heads key_dim", k="bfloat16 num_tokens num_q_heads key_dim",
    v="bfloat16 num_tokens num_v_heads value_dim", b="bfloat16 num_tokens num_v_heads",
    initial_state="float32 state_count num_v_heads value_dim key_dim", initial_state_indices="int32 num_seqs",
    cu_seqlens="int32 len_cu_seqlens", output="bfloat16 num_tokens num_v_heads value_dim",
    final_state="float32 state_count num_v_heads value_dim key_dim")


def run(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state):
    """A_log float32 and dt_bias bf16 [num_v_heads]; a, b bf16 [num_tokens, num_v_heads]; q, k bf16 [num_tokens,
    num_q_heads, key_dim]; v bf16 [num_tokens, num_v_heads, value_dim]; initial_state float32 [state_count,
    num_v_heads, value_dim, key_dim]; cu_seqlens int32 [num_seqs + 1]. Writes output, as v, and final_state.
    """
    check(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output, final_state)
    delta_rule_triton.solve(A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, cu_seqlens, output,
                            final_state, False)
