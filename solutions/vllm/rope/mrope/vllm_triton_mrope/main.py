"""vLLM's triton_mrope, in place on query and key."""

import functools
import inspect

import torch


@functools.cache
def rotation():
    """triton_mrope for heads whose halves form the pairs; vLLM 0.25 knows no others and takes no word for it."""
    from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

    has_choice = "is_neox_style" in inspect.signature(triton_mrope).parameters
    return functools.partial(triton_mrope, is_neox_style=True) if has_choice else triton_mrope


@torch.no_grad()
def run(query, key, cos, sin, section_time, section_height, section_width, query_out, key_out):
    """query bf16 [num_tokens, q_heads, 128], key likewise, cos and sin float32 [3, num_tokens, 64] -> both, rotated."""
    for output, source in ((query_out, query), (key_out, key)):
        if output.data_ptr() != source.data_ptr():
            output.copy_(source)
    if not len(query):
        return
    head_size = query.shape[2]
    sections = [int(section_time), int(section_height), int(section_width)]
    rotation()(query_out.flatten(1), key_out.flatten(1), cos, sin, sections, head_size, head_size, False)
