"""`derby shapes`: the operators and shapes that a model's config.json implies, and the standing set made from them."""

import contextlib
import json
import math
import shutil
from collections import Counter

import pytest

from kernelderby.catalog import Catalog
from kernelderby.catalog.workloads import MODELS
from kernelderby.errors import DerbyError
from kernelderby.shapes import rules, standing
from kernelderby.shapes.model import read_model
from kernelderby.shapes.rules import shapes_of

CONFIGS = sorted(standing.CONFIGS.glob("*.json"))


@pytest.fixture(scope="module")
def catalog(checkout):
    return Catalog.open(checkout)


def shapes(catalog, name, sharing, tokens=(64,)):
    """operator -> layer -> sizes of the shapes, var axes and numbers."""
    found = {}
    for each in shapes_of(catalog, read_model(standing.CONFIGS / f"{name}.json", sharing), tokens):
        var = {axis: size for axis, size in each.sizes.axes.items() if each.definition.axes[axis] is None}
        found.setdefault(each.definition.name, {}).setdefault(each.layer, []).append(var | each.sizes.scalars)
    return found


def test_a_dense_model_on_eight_gpus(catalog):
    found = shapes(catalog, "llama-3.1-70b", 8)
    assert found["rms_norm"] == {"a layer's norm": [{"num_tokens": 64, "hidden_size": 8192, "eps": 1e-5}]}
    assert found["silu_and_mul"] == {"MLP": [{"num_tokens": 64, "intermediate_size": 3584}]}
    rope = {"num_tokens": 64, "num_heads": 10, "num_q_heads": 8, "num_kv_heads": 1, "rope_base": 500000.0}
    assert found["fused_qkv_rope"] == {"rotary embedding": [rope]}
    for operator in ("fused_moe", "mla_decode_attention", "mrope", "layer_norm", "block_scaled_mm", "fused_qk_rmsnorm"):
        assert operator not in found
    decode = found["paged_attention_decode"]["attention, decoding"]
    assert {(each["num_query_heads"], each["num_kv_heads"], each["head_dim"]) for each in decode} == {(8, 1, 128)}
    assert max(each["num_seqs"] for each in decode) == 256 and max(each["max_context_len"] for each in decode) == 131072
    assert decode[0]["num_blocks"] == 256 and decode[0]["sm_scale"] == 128**-0.5


def test_experts_their_router_and_their_blocks(catalog):
    found = shapes(catalog, "qwen3-30b-a3b-fp8", 2)
    (experts,) = found["fp8_blockscale_fused_moe"]["experts"]
    assert (experts["num_experts"], experts["top_k"], experts["intermediate_size"]) == (128, 8, 384)
    assert (experts["num_hidden_blocks"], experts["num_gate_up_blocks"]) == (16, 6)
    assert found["moe_topk_gating_softmax"]["router"] == [{"num_tokens": 64, "num_experts": 128}]
    assert {"moe_align_block_size", "moe_count_and_sort", "moe_sum_reduce"} < found.keys()
    assert found["silu_and_mul"] == {"experts": [{"num_tokens": 512, "intermediate_size": 384}]}  # no dense layer
    assert found["block_scaled_mm"]["qkv_proj"][0]["n"] == (16 + 2 * 2) * 128
    assert {each["num_groups"] for each in found["per_token_group_quant_fp8"]["inputs of the experts' down_proj"]} == {
        3
    }
    # 768 over 4 GPUs is no whole number of blocks: no such kernel
    assert "fp8_blockscale_fused_moe" not in shapes(catalog, "qwen3-30b-a3b-fp8", 4)
    assert "fused_moe" in shapes(catalog, "qwen3-30b-a3b", 4)


def test_latent_attention_and_its_layers(catalog):
    found = shapes(catalog, "deepseek-v3", 8)
    assert {each["num_heads"] for each in found["mla_decode_attention"]["latent attention, decoding"]} == {16}
    assert {each["sm_scale"] for each in found["mla_decode_attention"]["latent attention, decoding"]} == {192**-0.5}
    assert found["block_scaled_mm"]["q_b_proj"][0] | {"m": 0} == {
        "m": 0,
        "n": 16 * 192,
        "k": 1536,
        "num_n_blocks": 24,
        "num_k_blocks": 12,
    }
    assert found["rms_norm"].keys() == {"a layer's norm", "norm of the latent queries", "norm of the latent keys"}
    assert "moe_topk_gating_softmax" not in found and "fused_qkv_rope" not in found  # sigmoid; the rotary part alone
    assert found["moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"]
    assert "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048" not in shapes(catalog, "kimi-k2", 8)


def test_pictures_sections_gates_and_linear_attention(catalog):
    found = shapes(catalog, "qwen2.5-vl-7b", 4)
    assert found["mrope"]["rotary embedding of three positions"][0]["section_height"] == 24
    windows = found["attention_forward"]["attention of the vision encoder, in windows of 8 x 8 patches"]
    assert windows[0]["max_seqlen"] == 64 and windows[0]["num_tokens"] == 64 * (windows[0]["len_cu_seqlens"] - 1)
    assert "fused_qkv_rope" not in found
    found = shapes(catalog, "qwen3-next-80b-a3b", 2)
    gate = {"num_tokens": 64, "hidden_size": 2048, "out_features": 2048}
    assert found["linear_sigmoid_mul"] == {"gate of attention": [gate]}
    assert found["causal_conv1d"]["convolution of linear attention, prefill of one request"][0]["dim"] == 4096
    assert found["gated_rms_norm"]["norm of linear attention's outputs"][0] == {
        "num_rows": 64 * 16,
        "hidden_size": 128,
        "eps": 1e-6,
    }
    assert "fused_qkv_rope" not in found  # a quarter of a head turns
    found = shapes(catalog, "gemma-3-27b", 1)
    assert found["layer_norm"].keys() == {"a norm of the vision encoder"} and "silu_and_mul" not in found
    assert shapes(catalog, "llama-3.1-405b-fp8", 8)["fused_rmsnorm_quant"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_committed_configuration_says_whose_it_is_and_has_a_place(catalog, path):
    plan = standing.read_toml(standing.CONFIGS.parent / "standing.toml", standing._Standing)
    data = json.loads(path.read_text())
    assert "/" in data["_model"] and "config.json" in data["_source"]
    for sharing in plan.tensor_parallel[path.stem]:
        assert len({each.definition.name for each in shapes_of(catalog, read_model(path, sharing), (64,))}) >= 4


def test_every_rule_is_some_model_s_and_names_an_operator(catalog):
    applied = set()
    for path in CONFIGS:
        for sharing in (1, 2):  # o_proj has an input of its own where a model is shared
            shapes = shapes_of(catalog, read_model(path, sharing), (64,))
            applied |= {(each.definition.name, each.layer) for each in shapes}
    for operator, layer, _ in rules.loads():
        assert operator in catalog.definitions
        assert (operator, layer) in applied, f"the rule of {operator}, {layer!r} applies to no committed model"


@pytest.fixture(scope="module")
def chosen(catalog):
    return standing.standing_shapes(catalog)


def test_the_standing_set_is_what_the_command_makes(catalog, chosen, monkeypatch):
    monkeypatch.setattr(standing, "standing_shapes", lambda catalog: chosen)
    made = standing.standing_lines(catalog)
    assert made.keys() >= {"rms_norm", "fused_moe", "unified_attention", "block_scaled_mm"}
    for name, lines in made.items():
        listed = []
        for line in catalog.workloads_path(name).read_text().splitlines():
            data = json.loads(line)
            if data.get("origin") == MODELS and standing._is_ours(data):
                assert data.pop("cost")
                listed.append(data)
        assert listed == [json.loads(line) for line in lines], f"{name}: run derby shapes --update and derby pack"
        assert 8 <= len(lines) <= 20


def test_the_standing_set_has_many_models_loads_and_sizes(chosen):
    models = Counter(each.model.name for each in chosen)
    assert len(models) > 20 and max(models.values()) < 0.25 * len(chosen)
    tokens = [each.sizes.axes["num_tokens"] for each in chosen if "num_tokens" in each.sizes.axes]
    assert min(tokens) == 1 and sum(each <= 64 for each in tokens) > len(tokens) / 5
    assert sum(each >= 2048 for each in tokens) > len(tokens) / 5
    assert len({each.uuid for each in chosen}) == len(chosen)


def test_scores_do_not_count_the_models(catalog):
    from kernelderby.catalog.selection import SCORED, by_origin

    for name in catalog.definitions:
        scored, *others = by_origin(catalog.workloads(name))
        if any(each.origin in SCORED for each in scored):
            assert not any(each.origin == MODELS for each in scored)


def test_the_command_writes_lines_that_the_set_reads(derby, small_set, checkout, tmp_path):
    config, out = standing.CONFIGS / "qwen3-8b.json", tmp_path / "mine.jsonl"
    words = ("--tp", 2, "--tokens", "5,77", "--definitions", "rms_norm", "--out", out, "--root", checkout)
    code, text, err = derby("shapes", config, *words)
    assert code == 0 and "Qwen/Qwen3-8B on 2 GPUs" in text and "norm of a query head" in text
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["workload"]["axes"]["num_tokens"] for line in lines] == [5, 77, 5 * 16, 77 * 16]
    assert lines[0]["source"] == {
        "model": "Qwen/Qwen3-8B",
        "config": "qwen3-8b.json",
        "tensor_parallel": 2,
        "layer": "a layer's norm",
    }
    data = json.loads(derby("shapes", config, *words, "--json")[1])
    assert data["shapes"] == lines
    code, text, err = derby("shapes", config, "--root", small_set)  # a set without these operators
    assert code == 0 and "0 shapes of 0 operators" in text


def test_a_committed_configuration_has_a_name(derby, checkout):
    words = ("--tp", 2, "--tokens", 9, "--json", "--root", checkout)
    by_path = derby("shapes", standing.CONFIGS / "qwen3-32b.json", *words)
    assert derby("shapes", "qwen3-32b", *words) == by_path and by_path[0] == 0
    code, out, err = derby("shapes", "qwen3-3b", *words)
    assert (code, out) == (1, "") and "did you mean" in err and "qwen3-32b" in err
    code, out, err = derby("shapes", "missing.json", *words)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "missing.json" in err


@pytest.mark.parametrize(
    "change, words, said",
    [
        ({"hidden_size": None}, [], "hidden_size"),
        ({"num_attention_heads": "many"}, [], "num_attention_heads"),
        ({}, ["--tp", 3], "intermediate_size: 14336 is no multiple of --tp 3; give a divisor"),
        ({}, ["--tokens", "x"], "--tokens: 'x'"),
        ({}, ["--tokens", "0"], "--tokens: '0'"),
        ({"kv_lora_rank": 512}, [], "is no model's config.json"),
        ({"rope_scaling": 5}, [], "rope_scaling: must be an object"),
        ({"hidden_size": 4100, "head_dim": None}, [], "4100 is no multiple of num_attention_heads 32; add head_dim"),
        ({"hidden_size": math.inf}, [], "config.json: not JSON"),
        ({"hidden_size": "1e400"}, [], "config.json: holds a number out of range; write a finite one"),
    ],
)
def test_what_is_no_model_is_one_line(derby, checkout, tmp_path, change, words, said):
    config = json.loads((standing.CONFIGS / "llama-3.1-8b.json").read_text()) | change
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config).replace('"1e400"', "1e400"))
    code, out, err = derby("shapes", path, *words, "--root", checkout)
    assert (code, out) == (1, "") and err.count("\n") == 1 and said in err


def test_an_encoder_has_no_gate(tmp_path, checkout):
    path = tmp_path / "bert.json"
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 30522}
    path.write_text(json.dumps({"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_act": "gelu", **sizes}))
    shapes = shapes_of(Catalog.open(checkout), read_model(path, 1), (1,))
    axes = [each.sizes.axes for each in shapes if each.definition.name == "gemm_bf16"]
    linear = {each["n"] for each in axes if each["k"] == 768}
    assert linear == {2304, 768, 3072, 30522}


def test_linear_layers_that_no_operator_computes_are_told(derby, checkout, tmp_path):
    config = json.loads((standing.CONFIGS / "llama-3.1-8b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
    code, out, err = derby("shapes", path, "--tokens", "1", "--root", checkout)
    assert code == 0 and "gate_up_proj" not in out
    assert err == f"derby: {path}: linear layers of this quantisation are no operator of the set, and are left out\n"


@pytest.fixture
def norms(checkout, tmp_path):
    """A set with the operators of one type."""
    for part in ("definitions/norm", "workloads/norm"):
        shutil.copytree(checkout / part, tmp_path / part)
    return tmp_path


def test_update_keeps_other_lines_and_costs(norms):
    assert standing.write_standing(Catalog.open(norms)) == []
    path = norms / "workloads/norm/l2_norm.jsonl"
    before = path.read_text()
    lines = before.splitlines()
    by_hand = json.loads(lines[-1]) | {"source": {"model": "mine"}}
    by_hand["workload"] |= {"uuid": "0000-mine", "axes": {"num_tokens": 3, "hidden_size": 7}}
    path.write_text("\n".join([*lines[:-3], json.dumps(by_hand), *lines[-2:]]) + "\n")
    assert standing.write_standing(Catalog.open(norms)) == [path]
    after = path.read_text().splitlines()
    assert json.dumps(by_hand) in after and [each for each in after if "0000-mine" not in each][:-3] == lines[:-3]
    missing = set(lines) - set(after)
    assert len(missing) == 1  # its cost has to be counted again
    assert json.loads(missing.pop())["workload"] in [json.loads(each)["workload"] for each in after]


@pytest.mark.parametrize("line", ['{"definition": "l2_norm", "wor', "[1]", '{"origin": "a", "origin": "b"}'])
def test_update_names_a_broken_line_and_keeps_the_file(derby, norms, line):
    path = norms / "workloads/norm/l2_norm.jsonl"
    text = path.read_text() + line + "\n"
    path.write_text(text)
    code, _, err = derby("shapes", "--update", "--root", norms)
    assert code == 1 and f"l2_norm.jsonl:{text.count(chr(10))}: " in err and err.count("\n") == 1
    assert path.read_text() == text


def test_a_definition_without_a_listed_workload_cannot_tell_what_it_generates(catalog, checkout, tmp_path):
    (tmp_path / "definitions/rope").mkdir(parents=True)
    for suffix in ("json", "py"):
        name = f"definitions/rope/mrope.{suffix}"
        (tmp_path / name).write_text((checkout / name).read_text())
    empty = Catalog.open(tmp_path)
    with pytest.raises(DerbyError, match="lists no workload"):
        rules.generated_inputs(empty, empty.definition("mrope"))


@pytest.mark.parametrize("field", ["text_config", "rms_norm_eps", "rope_theta", "n_routed_experts", "num_experts"])
@pytest.mark.parametrize("value", ["x", "²", "1e999", [1], {"a": 1}, 10**400])
def test_a_configuration_with_something_else_is_one_line(tmp_path, field, value):
    path = tmp_path / "config.json"
    given = json.loads((standing.CONFIGS / "deepseek-v3.json").read_text())
    path.write_text(json.dumps({**given, field: value}))
    with contextlib.suppress(DerbyError):
        read_model(path, 1)


@pytest.mark.parametrize(
    ("model", "part", "field"),
    [
        ("qwen3-30b-a3b", (), "head_dim"),
        ("qwen3-30b-a3b", (), "num_key_value_heads"),
        ("qwen3-30b-a3b", (), "num_experts"),
        ("qwen3-30b-a3b", (), "rms_norm_eps"),
        ("qwen3-30b-a3b", (), "hidden_size"),
        ("deepseek-v3", (), "q_lora_rank"),
        ("deepseek-v3", (), "qk_rope_head_dim"),
        ("deepseek-v3", (), "n_group"),
        ("llama-4-scout", ("text_config",), "head_dim"),
        ("qwen3-next-80b-a3b", (), "linear_num_key_heads"),
        ("qwen2.5-vl-3b", ("rope_scaling",), "mrope_section"),
        ("qwen2.5-vl-3b", ("vision_config",), "patch_size"),
    ],
)
@pytest.mark.parametrize("value", ["128", [1, 2.5], {"": None}, -1, True, 10**30])
def test_a_value_of_another_kind_is_named_and_loses_no_shapes(tmp_path, model, part, field, value):
    """Once a rule that could not use it was left out in silence, and `derby capture --model` ended with a traceback."""
    path = tmp_path / "config.json"
    given = json.loads((standing.CONFIGS / f"{model}.json").read_text())
    holder = given[part[0]] if part else given
    assert field in holder
    holder[field] = value
    path.write_text(json.dumps(given))
    if field == "rms_norm_eps" and value == 10**30:  # a number above 0
        assert read_model(path, 1).facts["eps"] == 1e30
        return
    with pytest.raises(DerbyError, match=rf"config.json: .*{field}.*: (must be|is) .*;"):
        read_model(path, 1)


def test_patches_may_be_told_as_height_and_width(tmp_path):
    path = tmp_path / "config.json"
    given = json.loads((standing.CONFIGS / "qwen2.5-vl-3b.json").read_text())
    given["vision_config"]["patch_size"] = [14, 14]
    path.write_text(json.dumps(given))
    assert read_model(path, 1).facts == read_model(standing.CONFIGS / "qwen2.5-vl-3b.json", 1).facts


def test_a_null_is_a_part_that_the_model_lacks(tmp_path):
    path = tmp_path / "config.json"
    given = json.loads((standing.CONFIGS / "qwen3-8b.json").read_text())
    path.write_text(json.dumps({**given, "kv_lora_rank": None, "rms_norm_eps": None, "linear_num_key_heads": None}))
    facts = read_model(path, 1).facts
    assert facts["eps"] == 1e-6 and "kv_heads" in facts and not {"kv_latent", "linear_k_heads"} & facts.keys()


def test_linear_layers_in_bfloat16_and_the_forms_of_servers(catalog):
    found = shapes(catalog, "qwen3-32b", 4)["gemm_bf16"]
    assert {layer: (each["n"], each["k"], each["bias_rows"]) for layer, (each,) in found.items()} == {
        "qkv_proj": ((16 + 2 * 2) * 128, 5120, 0),
        "o_proj": (5120, 2048, 0),
        "gate_up_proj": (2 * 6400, 5120, 0),
        "down_proj": (5120, 6400, 0),
        "head": (37984, 5120, 0),
    }
    assert shapes(catalog, "qwen2.5-vl-7b", 2)["gemm_bf16"]["qkv_proj"][0]["bias_rows"] == 1
    assert "up_proj" in shapes(catalog, "starcoder2-15b", 1)["gemm_bf16"]  # without a gate
    assert shapes(catalog, "qwen3-30b-a3b-fp8", 1)["gemm_bf16"].keys() == {"router", "head"}
    latent = shapes(catalog, "deepseek-v2", 8)
    assert latent["gemm_bf16"]["projections into the latents"][0]["n"] == 1536 + 512 + 64
    assert latent["fused_moe_bf16"] == latent["fused_moe"]
    fp8 = shapes(catalog, "deepseek-v3", 8)
    assert fp8["block_scaled_mm_bf16"] == fp8["block_scaled_mm"]
    paged = fp8["mla_paged_decode_attention"]["latent attention, decoding"]
    assert {(each["num_heads"], each["block_size"]) for each in paged} == {(16, 64)} and len(paged) == 13


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "layer_norm_epsilon": 1e-5}, (4800, 1600, 6400, 1)),
        (
            {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "multi_query": True},
            (73 * 64, 4544, 18176, 0),
        ),
        (
            {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"kv_n_heads": 8}, "ffn_dim": 16384},
            (48 * 128, 4096, 16384, 0),
        ),
    ],
)
def test_other_names_for_the_same_sizes(catalog, tmp_path, config, sizes):
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 50257}))
    made = shapes_of(catalog, read_model(tmp_path / "config.json", 1), (64,))
    found = {each.layer: each.sizes.axes for each in made if each.definition.name == "gemm_bf16"}
    qkv, up = found["qkv_proj"], found["up_proj"]
    assert (qkv["n"], qkv["k"], up["n"], qkv["bias_rows"]) == sizes


def test_experts_in_a_part_of_the_file(catalog, tmp_path):
    """As DBRX has them."""
    ffn = {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}
    config = {"d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8}, "ffn_config": ffn, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "dbrx", "vocab_size": 100352}))
    made = shapes_of(catalog, read_model(tmp_path / "config.json", 2), (64,))
    (experts,) = [each.sizes.axes for each in made if each.definition.name == "fused_moe_bf16"]
    assert (experts["num_experts"], experts["top_k"], experts["intermediate_size"]) == (16, 4, 5376)


def test_what_transformers_5_writes(catalog, tmp_path):
    config = json.loads((standing.CONFIGS / "qwen3-8b.json").read_text())
    before = [each.uuid for each in shapes_of(catalog, read_model(standing.CONFIGS / "qwen3-8b.json", 2), (64,))]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert [each.uuid for each in shapes_of(catalog, read_model(tmp_path / "config.json", 2), (64,))] == before
    config["rope_parameters"] = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path / "config.json", 1).facts["rope_base"] == 1e6
    config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "rope_base" not in read_model(tmp_path / "config.json", 1).facts


def test_lists_of_equal_sizes_and_blocks_of_compressed_tensors(tmp_path):
    config = {"hidden_size": 4096, "intermediate_size": 3072, "num_attention_heads": 32, "vocab_size": 128_000}
    config |= {
        "num_experts": 64,
        "moe_topk": [8, 8],
        "moe_intermediate_size": [3072, 3072],
        "num_shared_expert": [1, 1],
    }
    groups = {"group_0": {"weights": {"num_bits": 8, "block_structure": [128, 128]}, "input_activations": {}}}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_model(tmp_path / "config.json", 1).facts
    assert (facts["top_k"], facts["expert"], facts["shared"], facts["fp8_block"]) == (8, 3072, 3072, 1)
    (tmp_path / "config.json").write_text(json.dumps(config | {"moe_topk": [8, 2]}))
    with pytest.raises(DerbyError, match="num_experts_per_tok: is .8, 2.; give a model's config.json"):
        read_model(tmp_path / "config.json", 1)
