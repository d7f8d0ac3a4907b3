"""A model's config.json in Hugging Face's form -> the numbers that the rules use, on one of several GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.shapes.kinds import WIDEST, ConfigParts, RopeConfig, TextConfig
from kernelderby.store.fields import convert, read_json

# Models that multiply attention by the sigmoid of another layer, over the columns of all heads.
_GATED = ("qwen3_next", "qwen3_5", "minimax_text_01")
# Models with a norm of each query and key head; others state it (use_qk_norm).
_QK_NORM = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe")
_L2_NORM = ("llama4",)  # without weights
_UNGATED = (
    *("gpt2", "gptj", "gpt_neox", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2", "nemotron", "nemotron_h"),
    *("gpt_bigcode", "codegen", "persimmon", "bert", "roberta", "xlm-roberta", "camembert", "electra", "albert"),
)
_QKV_BIAS = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl")  # others state it
# Names that some models have for the same, and parts of a file with such names.
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "kv_n_heads"),
    "head_dim": ("attention_head_dim",),
    "num_local_experts": ("moe_num_experts",),
    "num_experts_per_tok": ("moe_top_k", "moe_topk", "moe_k"),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_ffn_hidden_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert"),
    "layer_norm_eps": ("norm_epsilon", "layer_norm_epsilon"),
    "hidden_act": ("hidden_activation", "activation_function", "mlp_hidden_act"),
}
_PARTS = ("text_config", "llm_config", "language_config", "attn_config", "ffn_config")


@dataclass(frozen=True, slots=True)
class Model:
    """facts: name -> number; absent for parts that the model lacks. Sizes that GPUs share are the sizes on one GPU."""

    name: str
    config: str
    tensor_parallel: int
    facts: dict[str, int | float]


def read_model(path: Path, tensor_parallel: int) -> Model:
    """DerbyError if the file is not a model's, or this number of GPUs cannot share it."""
    config: dict[str, Any] = read_json(path)
    convert(path, config, ConfigParts)
    kind = config.get("model_type", "")
    try:
        text = _with_usual_names(config)
        convert(path, text, TextConfig)
        facts = {
            **_layers(path, text, kind, tensor_parallel),
            **_heads(path, text, kind, tensor_parallel),
            **_latent(text),
            **_experts(path, text, kind, tensor_parallel),
            **_linear(path, text, tensor_parallel),
            **_vision(path, text.get("vision_config") or {}, tensor_parallel),
            **_quantized(text.get("quantization_config") or {}),
        }
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise DerbyError(f"{path}: is no model's config.json ({error}); mend it") from None
    facts["tp"] = tensor_parallel
    name = config.get("_model") or config.get("_name_or_path") or path.stem
    return Model(str(name), path.name, tensor_parallel, facts)


def left_out(model: Model, config: Path) -> list[str]:
    """A line if the model's linear layers have no operator. config: as the caller named it."""
    if model.facts.keys() & {"bf16", "fp8_block", "fp8_token"}:
        return []
    return [f"{config}: linear layers of this quantisation are no operator of the set, and are left out"]


def _with_usual_names(config: dict[str, Any]) -> dict[str, Any]:
    text = {name: value for name, value in config.items() if value is not None}
    for part in _PARTS:
        text |= {name: value for name, value in (config.get(part) or {}).items() if value is not None}
    for name, others in _OTHER_NAMES.items():
        for other in others:
            if text.get(name) is None and text.get(other) is not None:
                text[name] = text[other]
        if name in text:
            text[name] = _alike(text[name])
    if isinstance(vision := text.get("vision_config"), dict):
        text["vision_config"] = {name: _alike(value) for name, value in vision.items()}
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        text["num_key_value_heads"] = 1
    if text.get("intermediate_size") is None and text.get("model_type") in _UNGATED:
        text["intermediate_size"] = 4 * text["hidden_size"]
    return text


def _alike(value: Any) -> Any:
    """The number of a list with one for each layer, or for height and width, if they are the same."""
    return value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value


def _number(path: Path, text: dict[str, Any], name: str) -> int:
    value = text.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= WIDEST:
        told = "is missing" if value is None else f"is {value!r:.40}"
        raise DerbyError(f"{path}: {name}: {told}; give a model's config.json, with its sizes")
    return value


def _shared(path: Path, name: str, size: int, tensor_parallel: int) -> int:
    if size % tensor_parallel:
        raise DerbyError(f"{path}: {name}: {size} is no multiple of --tp {tensor_parallel}; give a divisor")
    return size // tensor_parallel


def _layers(path: Path, text: dict[str, Any], kind: str, tp: int) -> dict[str, int | float]:
    facts: dict[str, int | float] = {"hidden": _number(path, text, "hidden_size"), "vocab": text.get("vocab_size", 0)}
    facts["gated"] = int(kind not in _UNGATED)
    layer_norm = text.get("layer_norm_eps")
    if layer_norm is not None:
        facts |= {"layer_norm": 1, "eps": float(layer_norm)}
    else:
        facts |= {"rms_norm": 1, "eps": float(text.get("rms_norm_eps", 1e-6))}
    is_dense = not _routed(text) or text.get("first_k_dense_replace", 0)
    if is_dense:
        facts["dense"] = _shared(path, "intermediate_size", _number(path, text, "intermediate_size"), tp)
    if text.get("hidden_act") in ("silu", "swiglu") and "swiglu_limit" not in text:
        facts["silu"] = 1
    return facts


def _heads(path: Path, text: dict[str, Any], kind: str, tp: int) -> dict[str, int | float]:
    total = _number(path, text, "num_attention_heads")
    facts: dict[str, int | float] = {"all_heads": total, "heads": _shared(path, "num_attention_heads", total, tp)}
    if "kv_lora_rank" in text:
        return facts
    of_keys = text.get("num_key_value_heads") or total
    if of_keys % tp and tp % of_keys:
        raise DerbyError(f"{path}: num_key_value_heads: {of_keys} and --tp {tp} do not divide; give a divisor")
    facts["kv_heads"] = max(1, of_keys // tp)
    hidden = _number(path, text, "hidden_size")
    if not text.get("head_dim") and hidden % total:
        raise DerbyError(f"{path}: hidden_size: {hidden} is no multiple of num_attention_heads {total}; add head_dim")
    facts["head_dim"] = text.get("head_dim") or hidden // total
    stated = text.get("attention_bias") or text.get("qkv_bias") or text.get("use_bias") or text.get("bias")
    facts["qkv_bias"] = int(bool(stated) or kind in _QKV_BIAS or kind == "gpt2")
    rope = _rope(text)
    convert(path, rope, RopeConfig)
    if sections := rope.get("mrope_section"):
        facts |= dict(zip(("section_time", "section_height", "section_width"), sections, strict=False))
    elif rope.get("partial_rotary_factor", 1.0) == 1.0 and rope.get("rope_theta"):
        facts["rope_base"] = float(rope["rope_theta"])
    if text.get("use_qk_norm") or kind in _QK_NORM:
        facts["l2_heads" if kind in _L2_NORM else "norm_heads"] = 1
    if kind in _GATED:
        facts["gate"] = facts["heads"] * facts["head_dim"]
    return facts


def _rope(text: dict[str, Any]) -> dict[str, Any]:
    """What a file says of rotary embedding: beside the sizes, in rope_scaling, or in rope_parameters (transformers 5),
    there also for each kind of layer."""
    said = {name: text[name] for name in ("rope_theta", "partial_rotary_factor") if text.get(name) is not None}
    for part in ("rope_scaling", "rope_parameters"):
        found = text.get(part) or {}
        kinds = [
            each for name, each in found.items() if isinstance(each, dict) and name not in RopeConfig.__struct_fields__
        ]
        said |= found.get("full_attention") or (kinds[0] if kinds else found)
    return said


def _latent(text: dict[str, Any]) -> dict[str, int | float]:
    """The facts of latent attention. q_latent: 0 if queries have no latent."""
    if "kv_lora_rank" not in text:
        return {}
    return {
        "kv_latent": text["kv_lora_rank"],
        "q_latent": text.get("q_lora_rank") or 0,
        "rope_dim": text["qk_rope_head_dim"],
        "nope_dim": text["qk_nope_head_dim"],
        "v_dim": text["v_head_dim"],
    }


def _routed(text: dict[str, Any]) -> int:
    return int(text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts") or 0)


def _experts(path: Path, text: dict[str, Any], kind: str, tp: int) -> dict[str, int | float]:
    experts = _routed(text)
    if not experts:
        return {}
    size = text.get("moe_intermediate_size") or _number(path, text, "intermediate_size")
    facts: dict[str, int | float] = {
        "experts": experts,
        "top_k": _number(path, text, "num_experts_per_tok"),
        "all_expert": size,
        "expert": _shared(path, "moe_intermediate_size", size, tp),
        "scaling": float(text.get("routed_scaling_factor") or 1.0),
        "groups": text.get("n_group") or 1,
    }
    facts["softmax_router" if text.get("scoring_func", "softmax") == "softmax" else "sigmoid_router"] = 1
    shared = text.get("shared_expert_intermediate_size") or size * (text.get("n_shared_experts") or 0)
    if kind == "llama4":
        shared = size
    if shared:
        facts["shared"] = _shared(path, "shared expert's size", shared, tp)
    return facts


def _linear(path: Path, text: dict[str, Any], tp: int) -> dict[str, int | float]:
    """The facts of gated linear attention with keys and values of 128."""
    if "linear_num_key_heads" not in text:
        return {}
    return {
        "linear_k_heads": _shared(path, "linear_num_key_heads", text["linear_num_key_heads"], tp),
        "linear_v_heads": _shared(path, "linear_num_value_heads", text["linear_num_value_heads"], tp),
        "linear_k_dim": text["linear_key_head_dim"],
        "linear_v_dim": text["linear_value_head_dim"],
    }


def _vision(path: Path, vision: dict[str, Any], tp: int) -> dict[str, int | float]:
    heads = vision.get("num_heads") or vision.get("num_attention_heads")
    if not heads or vision.get("hidden_size") is None:
        return {}
    facts: dict[str, int | float] = {
        "vision_hidden": vision["hidden_size"],
        "vision_heads": _shared(path, "vision_config.num_heads", heads, tp),
        "vision_head_dim": vision["hidden_size"] // heads,
        "patch": vision.get("patch_size") or 14,
    }
    if vision.get("layer_norm_eps") is not None:
        facts["vision_eps"] = float(vision["layer_norm_eps"])
    if vision.get("hidden_act") == "silu":
        facts["vision_dense"] = vision["intermediate_size"]  # most engines give each GPU all of it
    if vision.get("image_size") is not None:
        facts["vision_image"] = vision["image_size"]
    return facts


def _quantized(quantization: dict[str, Any]) -> dict[str, int | float]:
    """bf16: nothing is quantised. fp8_block: blocks of 128 x 128 weights and 128 activations. fp8_token: one scale for
    each row of activations."""
    if not quantization:
        return {"bf16": 1}
    method = quantization.get("quant_method", "")
    if method == "fp8" and quantization.get("weight_block_size") == [128, 128]:
        return {"fp8_block": 1}
    groups = quantization.get("config_groups") or {}
    weights = [group.get("weights") or {} for group in groups.values()]
    if any(each.get("num_bits") == 8 and each.get("block_structure") == [128, 128] for each in weights):
        return {"fp8_block": 1}
    inputs = [group.get("input_activations") or {} for group in groups.values()]
    by_token = any(each.get("strategy") == "token" and each.get("num_bits") == 8 for each in inputs)
    return {"fp8_token": 1} if method == "fbgemm_fp8" or by_token else {}
