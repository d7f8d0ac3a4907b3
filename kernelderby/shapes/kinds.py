"""What a model's config.json may hold, of the fields that model.py reads: a value of another kind is an error in one
line, and never a shape that is missing in silence. Every field may be absent or null: the model lacks that part."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from kernelderby.store.fields import NotNegative, must_be

WIDEST = 1 << 26  # the largest size that a file may state; an axis holds the product of two
_Width = Annotated[int, must_be(f"an integer from 1 to {WIDEST}", ge=1, le=WIDEST)]
_Some = Annotated[int, must_be(f"an integer from 0 to {WIDEST}", ge=0, le=WIDEST)]


class RopeConfig(Struct):
    rope_theta: NotNegative | None = None
    partial_rotary_factor: NotNegative | None = None
    mrope_section: tuple[_Width, ...] | None = None


class VisionConfig(Struct):
    hidden_size: _Width | None = None
    intermediate_size: _Width | None = None
    num_heads: _Some | None = None
    num_attention_heads: _Some | None = None
    patch_size: _Width | None = None
    image_size: _Width | None = None
    layer_norm_eps: NotNegative | None = None
    hidden_act: str | None = None


class _OperandConfig(Struct):
    num_bits: int | None = None
    block_structure: list[int] | str | None = None
    strategy: str | None = None


class _GroupConfig(Struct):
    weights: _OperandConfig | None = None
    input_activations: _OperandConfig | None = None


class _QuantizationConfig(Struct):
    quant_method: str | None = None
    weight_block_size: list[int] | None = None
    config_groups: dict[str, _GroupConfig] | None = None


class TextConfig(RopeConfig):
    """The kinds of what model.py reads, but of the sizes that every model must state: those it asks for one by one."""

    model_type: str | None = None
    vocab_size: _Some | None = None
    layer_norm_eps: NotNegative | None = None
    rms_norm_eps: NotNegative | None = None
    first_k_dense_replace: _Some | None = None
    hidden_act: str | None = None
    num_key_value_heads: _Width | None = None
    head_dim: _Width | None = None
    attention_bias: bool | None = None
    qkv_bias: bool | None = None
    use_bias: bool | None = None
    bias: bool | None = None
    use_qk_norm: bool | None = None
    kv_lora_rank: _Width | None = None
    q_lora_rank: _Some | None = None
    qk_rope_head_dim: _Width | None = None
    qk_nope_head_dim: _Width | None = None
    v_head_dim: _Width | None = None
    n_routed_experts: _Some | None = None
    num_experts: _Some | None = None
    num_local_experts: _Some | None = None
    moe_intermediate_size: _Some | None = None
    routed_scaling_factor: NotNegative | None = None
    n_group: _Some | None = None
    scoring_func: str | None = None
    shared_expert_intermediate_size: _Some | None = None
    n_shared_experts: _Some | None = None
    linear_num_key_heads: _Width | None = None
    linear_num_value_heads: _Width | None = None
    linear_key_head_dim: _Width | None = None
    linear_value_head_dim: _Width | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    quantization_config: _QuantizationConfig | None = None
    vision_config: VisionConfig | None = None


class ConfigParts(Struct):
    text_config: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    language_config: dict[str, Any] | None = None
    attn_config: dict[str, Any] | None = None
    ffn_config: dict[str, Any] | None = None
