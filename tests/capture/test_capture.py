"""derby capture on small traces: operators, sizes, owners of the time, CUDA graphs, what stays unmapped, the set."""

import json
import sqlite3

import pytest

import kernelderby
from kernelderby.capture.capture import alike, capture
from kernelderby.capture.mapping import facts_of
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.profile.filters import make_selection
from kernelderby.profile.sources.recognise import open_profile
from kernelderby.report.capture import capture_warnings
from kernelderby.shapes.model import read_model
from kernelderby.shapes.standing import configuration_file
from tests.capture.kineto import Trace
from tests.conftest import CHECKOUT
from tests.profile.make_nsys import Export, global_id

GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"


@pytest.fixture(scope="module")
def catalog():
    return Catalog.open(CHECKOUT)


@pytest.fixture
def take(catalog, tmp_path):
    """Writes traces, opens them, captures."""

    def taken(*traces, facts=None, context=None):
        files = [trace.write(tmp_path / f"{number}.json") for number, trace in enumerate(traces)]
        return capture(catalog, [open_profile(file, True) for file in files], facts or {}, context)

    return taken


def shapes(found):
    return {
        each.definition.name: (
            round(each.calls),
            each.time_ns,
            each.sizes.axes,
            each.sizes.scalars | each.sizes.generator,
        )
        for each in found.shapes
    }


def test_a_linear_layer_is_one_gemm_whatever_runs_inside(take):
    trace = Trace()
    for _ in range(2):
        trace.operator(
            "aten::linear",
            ["bf16 4x16x64", "bf16 96x64", "bf16 96"],
            lambda: trace.operator(
                "aten::addmm",
                ["bf16 96", "bf16 64x64", "bf16 64x96"],
                trace.kernel(GEMM, 10),
                trace.kernel("void cublasLt::splitKreduce_kernel<32>()", 2),
            ),
        )
    found = take(trace)
    assert shapes(found) == {"gemm_bf16": (2, 24_000, {"m": 64, "n": 96, "k": 64, "bias_rows": 1}, {})}
    assert (found.total_ns, found.mapped_ns, found.shaped_ns) == (24_000, 24_000, 24_000)
    assert not found.unmapped


@pytest.mark.parametrize(
    ("name", "operands", "definition", "axes"),
    [
        ("aten::mm", ["bf16 5x64", "bf16 64x96"], "gemm_bf16", {"m": 5, "n": 96, "k": 64, "bias_rows": 0}),
        (
            "_C::rms_norm",
            ["bf16 5x64", "bf16 5x64", "bf16 64", "1e-05"],
            "rms_norm",
            {"num_tokens": 5, "hidden_size": 64},
        ),
        (
            "sgl_kernel::fused_add_rmsnorm",
            ["bf16 5x64", "bf16 5x64", "bf16 64", "1e-06", "False"],
            "fused_add_rms_norm",
            {"num_tokens": 5, "hidden_size": 64},
        ),
        ("_C::silu_and_mul", ["bf16 5x64", "bf16 5x128"], "silu_and_mul", {"num_tokens": 5, "intermediate_size": 64}),
        (
            "sglang::inplace_fused_experts",
            ["bf16 5x64", "bf16 8x64x64", "bf16 8x64x32", "fp32 5x2", "i64 5x2"],
            "fused_moe",
            {
                "num_tokens": 5,
                "hidden_size": 64,
                "intermediate_size": 32,
                "gate_up_size": 64,
                "num_experts": 8,
                "top_k": 2,
            },
        ),
        (
            "vllm::w8a8_triton_block_scaled_mm_func",
            ["fp8 5x256", "fp8 384x256", "fp32 5x2", "fp32 3x2", "", ""],
            "block_scaled_mm",
            {"m": 5, "n": 384, "k": 256, "num_n_blocks": 3, "num_k_blocks": 2},
        ),
        (
            "_C_cache_ops::reshape_and_cache_flash",
            ["bf16 5x8x128", "bf16 5x8x128", "bf16 90x32x8x128", "bf16 90x32x8x128", "i64 5"],
            "reshape_and_cache",
            {"num_tokens": 5, "num_heads": 8, "head_dim": 128, "num_blocks": 1024},
        ),
        (
            "_moe_C::topk_softmax",
            ["fp32 5x8", "i64 5x8", "i64 5x8", "fp32 5x64"],
            "moe_topk_gating_softmax",
            {"num_tokens": 5, "num_experts": 64, "top_k": 8},
        ),
        (
            "sgl_kernel::sgl_per_token_group_quant_8bit",
            ["bf16 5x512", "fp8 5x512", "fp32 5x4", "128", "1e-10"],
            "per_token_group_quant_fp8",
            {"num_tokens": 5, "num_groups": 4},
        ),
    ],
)
def test_operators_of_servers_on_our_axes(take, name, operands, definition, axes):
    trace = Trace()
    trace.operator(name, operands, trace.kernel("k"))
    [(found, (calls, time, own, _))] = shapes(take(trace)).items()
    assert (found, calls, time) == (definition, 1, 10_000)
    assert axes.items() <= own.items()


@pytest.mark.parametrize(
    ("name", "operands", "reason"),
    [
        ("aten::mm", ["fp32 5x64", "fp32 64x96"], "float32 elements"),
        ("aten::mm", ["bf16 5x64", "bf16 65x96"], "argument 1 is 65x96"),
        ("aten::_scaled_mm", ["fp8 5x256", "fp8 256x384", "fp32 5x1", "fp32 1x384"], "scales of whole rows"),
        (
            "_C::rotary_embedding",
            ["i64 5", "bf16 5x512", "bf16 5x64", "64", "bf16 9x64"],
            "head_dim is 64, and fused_qkv_rope has 128",
        ),
        ("aten::cumsum", ["i64 5"], "no operator of the set"),
        ("vllm::moe_forward", ["bf16 5x64", "bf16 5x8"], "experts' sizes are not in the trace"),
        ("aten::mm", ["bf16 0x64", "bf16 64x96"], "empty"),
    ],
)
def test_what_is_no_definition_is_listed_with_its_reason(take, name, operands, reason):
    trace = Trace()
    trace.operator(name, operands, trace.kernel("k"))
    found = take(trace)
    assert not found.shapes and found.shaped_ns == found.total_ns
    [left] = found.unmapped
    assert (left.operator, left.time_ns) == (name, 10_000) and reason in left.reason


def test_an_operator_without_shapes_and_a_kernel_without_operator(take):
    trace = Trace()
    trace.operator("aten::mm", [], trace.kernel(GEMM), shapes=False)
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")()
    found = take(trace)
    assert found.shaped_ns == found.mapped_ns == 0 and found.total_ns == 20_000
    assert {each.operator: each.reason for each in found.unmapped} == {
        "aten::mm": "recorded without shapes (record_shapes=True)",
        "communication": "no operator around its launch in the file",
    }


def test_float16_is_raced_as_bfloat16_and_says_so(take):
    trace = Trace()
    trace.operator("aten::mm", ["fp16 5x64", "fp16 64x96"], trace.kernel("k"))
    [shape] = take(trace).shapes
    assert shape.note == "float16 here"


def test_a_container_leaves_the_operators_inside_their_kernels(take):
    trace = Trace()
    query = ["bf16 8x32x128", "bf16 8x8x128", "bf16 8x8x128", "bf16 8x32x128", ""]
    cache = ["bf16 8x8x128", "bf16 8x8x128", "bf16 90x32x8x128", "bf16 90x32x8x128", "i64 8"]
    trace.operator(
        "vllm::unified_attention_with_output",
        query,
        lambda: trace.operator("_C_cache_ops::reshape_and_cache_flash", cache, trace.kernel("cache", 3)),
        trace.kernel("kernel_unified_attention_2d", 20),
    )
    trace.event(
        "user_annotation", "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk8000sqsq8sqsk8000)", 90, 900, {}
    )
    found = shapes(take(trace))
    assert found["reshape_and_cache"][:2] == (1, 3_000)
    calls, time, axes, scalars = found["unified_attention"]
    assert (calls, time, axes["num_tokens"], axes["num_seqs"]) == (1, 20_000, 8, 8)
    assert (scalars["max_query_len"], scalars["max_seq_len"], axes["num_blocks"]) == (1, 1000, 504)


def test_context_and_a_models_configuration_tell_what_the_trace_does_not(take):
    trace = Trace()
    trace.operator("vllm::unified_attention_with_output", ["bf16 4x8x128", "bf16 4x2x128"], trace.kernel("a"))
    trace.operator("vllm::moe_forward", ["bf16 4x2048", "bf16 4x128", ""], trace.kernel("b"))
    trace.event("user_annotation", "step[DECODE bs=4 toks=4]", 90, 900, {})
    assert {each.operator for each in take(trace).unmapped} == {
        "vllm::unified_attention_with_output",
        "vllm::moe_forward",
    }
    model = read_model(configuration_file(CHECKOUT / "kernelderby/shapes/configs/qwen3-30b-a3b.json"), 1)
    found = shapes(take(trace, facts={"quantized": 0} | model.facts, context=2048))
    assert found["unified_attention"][3]["max_seq_len"] == 2048
    assert found["fused_moe"][2]["intermediate_size"] == 768 and found["fused_moe"][3] == {"routing": "zipf"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("execute_context_2(888)_generation_0(0)", (2, 888, 888, 0, 0, 0)),
        ("execute_context_0(0)_generation_4(4)", (0, 0, 0, 4, 4, 400)),
        ("execute_37_context_1(sq9sk19sqsq1sqsk1)_generation_36(sq36sk720sqsq36sqsk720)", (1, 9, 19, 36, 36, 720)),
        ("step[EXTEND bs=4 toks=8192]", (4, 8192, 8192, 0, 0, 0)),
        ("step[DECODE bs=32]", (0, 0, 0, 32, 32, 3200)),
        ("ProfilerStep#3", ()),
    ],
)
def test_a_step_annotation_gives_its_counts(name, told):
    found = facts_of(("outer", name), 100, {})
    names = (
        "context_seqs",
        "context_tokens",
        "context_cached",
        "generation_seqs",
        "generation_tokens",
        "generation_cached",
    )
    assert tuple(found[each] for each in names if each in found) == (told or ())


def huggingface_layer(trace, kind="bf16"):
    """RMSNorm and the MLP's activation as Hugging Face's Llama writes them."""
    for name, operands in (
        ("aten::to", [f"{kind} 2x8x64", "6"]),
        ("aten::pow", ["fp32 2x8x64", "2"]),
        ("aten::mean", ["fp32 2x8x64", ""]),
        ("aten::add", ["fp32 2x8x1", "1e-06"]),
        ("aten::rsqrt", ["fp32 2x8x1"]),
        ("aten::mul", ["fp32 2x8x64", "fp32 2x8x1"]),
        ("aten::to", ["fp32 2x8x64", "15"]),
        ("aten::mul", [f"{kind} 64", f"{kind} 2x8x64"]),
        ("aten::silu", [f"{kind} 2x8x96"]),
        ("aten::linear", [f"{kind} 2x8x64", f"{kind} 96x64", ""]),
        ("aten::mul", [f"{kind} 2x8x96", f"{kind} 2x8x96"]),
        ("aten::mul", [f"{kind} 2x8x96", f"{kind} 2x8x96"]),
    ):
        trace.operator(name, operands, trace.kernel(f"kernel of {name}", 1, (1, len(operands), 1)))


def test_norms_and_activations_composed_of_elementwise_operators(take):
    trace = Trace()
    huggingface_layer(trace)
    huggingface_layer(trace)
    found = take(trace)
    told = shapes(found)
    assert told["rms_norm"] == (2, 16_000, {"num_tokens": 16, "hidden_size": 64}, {"eps": 1e-06})
    assert told["silu_and_mul"][:2] == (2, 4_000) and told["gemm_bf16"][:2] == (2, 2_000)
    assert {each.note for each in found.shapes} == {"", "composed of smaller operators"}
    assert [(each.operator, each.launches) for each in found.unmapped] == [("aten::mul", 2)]


def test_a_composed_norm_in_float32_is_none(take):
    trace = Trace()
    huggingface_layer(trace, "fp32")
    assert not take(trace).shapes


@pytest.mark.parametrize(
    ("query", "key", "scores", "axes"),
    [
        ("bf16 2x4x32x64", "bf16 2x4x64x32", "bf16 2x4x32x32", (64, 4, 3)),
        ("bf16 8x32x64", "bf16 8x64x32", "bf16 8x32x32", (32, 8, 2)),
    ],
    ids=["matmul", "bmm"],
)
def test_attention_with_its_scores_written_out_is_one_operator(take, query, key, scores, axes):
    multiply = "aten::matmul" if query.count("x") == 3 else "aten::bmm"
    trace = Trace()
    trace.operator(multiply, [query, key], trace.kernel("scores", 3))
    trace.operator("aten::mul", [scores, "0.125"], trace.kernel("scale", 1))
    trace.operator("aten::softmax", [scores, "-1"], trace.kernel("softmax", 5))
    trace.operator(multiply, [scores, query], trace.kernel("value", 3))
    found = take(trace)
    [shape] = found.shapes
    own = shape.sizes.axes
    assert shape.definition.name == "attention_forward" and shape.time_ns == 12_000 and shape.calls == 1
    assert (own["num_tokens"], own["num_heads"], own["len_cu_seqlens"]) == axes and "batch" not in shape.sizes.generator


def test_attention_over_another_length_is_left_alone(take):
    trace = Trace()
    trace.operator("aten::bmm", ["bf16 8x32x64", "bf16 8x64x48"], trace.kernel("scores", 3))
    trace.operator("aten::softmax", ["bf16 8x32x48", "-1"], trace.kernel("softmax", 5))
    trace.operator("aten::bmm", ["bf16 8x32x48", "bf16 8x48x64"], trace.kernel("value", 3))
    assert not take(trace).shapes


@pytest.mark.parametrize(
    ("name", "operands", "definition"),
    [
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", ["bf16 8x4x64", "bf16 64", "bf16 8x4x64"], "rms_norm"),
        (
            "triton_per_fused__to_copy__unsafe_view_add_mean_mul_pow_rsqrt_11",
            ["bf16 8x4x64", "bf16 32x64", "bf16 64", "bf16 8x4x64"],
            "fused_add_rms_norm",
        ),
        ("triton_poi_fused_mul_silu_slice_2", ["bf16 32x192", "bf16 32x96", "3072"], "silu_and_mul"),
        ("triton_red_fused_add_cat_mean_mul_pow_rsqrt_0", ["bf16 8x4x64", "bf16 64", "bf16 8x4x64"], None),
        ("triton_poi_fused_addmm_silu_2", ["bf16 2x64", "bf16 2x64"], None),
    ],
)
def test_kernels_that_inductor_fused_of_one_operator(take, name, operands, definition):
    trace = Trace()
    trace.operator(name, operands, trace.kernel(name, 4))
    assert [each.definition.name for each in take(trace).shapes] == ([definition] if definition else [])


def test_a_list_of_tensors_has_sizes(take):
    trace = Trace()
    trace.operator("aten::cat", ["bf16 4x8"], trace.kernel("cat", 4))
    trace.events[-1]["args"] |= {"Input Dims": [[[4, 8], [2, 8]], []], "Input type": ["TensorList", "Scalar"]}
    found = take(trace)
    assert found.shaped_ns == found.total_ns
    assert [(each.operator, each.shape) for each in found.unmapped] == [("aten::cat", "4x8 2x8")]


# ---------- launches that are cut off


def cut_layers(has_grids):
    """Four layers of alike elementwise kernels around a GEMM; the launches of the first one are not in the trace."""
    trace = Trace()
    for layer in range(4):
        is_cut = layer == 0

        def kernel(name, duration, is_cut=is_cut):
            return trace.kernel(name, duration, (4, 1, 1), not is_cut)

        trace.operator("aten::mm", ["bf16 32x64", "bf16 64x96"], kernel(GEMM, 20))
        trace.operator("aten::add", ["bf16 32x96", "bf16 32x96"], kernel("elementwise", 2))
        trace.operator("aten::neg", ["bf16 32x96"], kernel("negation", 2))
        trace.operator("aten::mm", ["bf16 32x96", "bf16 96x64"], kernel(GEMM, 21))
        trace.operator("aten::mul", ["bf16 32x64", "bf16 32x64"], kernel("elementwise", 2))
    for each in [each for each in trace.events if each["cat"] == "kernel"][: 0 if has_grids else 5]:
        del each["args"]["grid"]
    return trace


@pytest.mark.parametrize("has_grids", [True, False])
def test_the_kernels_around_tell_a_launch_that_is_cut_off(take, has_grids):
    """GEMM and elementwise kernel are the same ones twice a layer, with the same grid: only their neighbours differ."""
    found = take(cut_layers(has_grids))
    told = {(each.sizes.axes["n"], each.sizes.axes["k"]): each.calls for each in found.shapes}
    assert told == {(96, 64): 4, (64, 96): 4}
    assert {(each.operator, each.launches) for each in found.unmapped} == {
        ("aten::add", 4),
        ("aten::neg", 4),
        ("aten::mul", 4),
    }
    assert found.inferred_ns == 47_000 and found.shaped_ns == found.total_ns


def test_a_kernel_of_another_length_without_a_grid_is_none_of_theirs(take):
    trace = cut_layers(has_grids=False)
    next(each for each in trace.events if each["cat"] == "kernel")["dur"] = 90
    found = take(trace)
    assert found.inferred_ns == 27_000 and found.total_ns - found.shaped_ns == 90_000


def test_what_the_surroundings_tell_and_what_not():
    layer = ["gemm", "add", "gemm", "mul"]
    operators = ["up", "plus", "down", "times"]
    assert alike(layer * 5, [None] * 4 + operators * 4) == {0: 4, 1: 5, 2: 6, 3: 7}
    assert alike(["gemm"] * 6, [None, "up", "down", "up", "down", "up"]) == {}  # two operators, one surrounding
    assert alike(["a", "b"], [None, None]) == {}


# ---------- graphs


def captured_trace(batches, named=True):
    trace = Trace()
    for batch in batches:

        def layer(batch=batch):
            trace.operator("aten::mm", [f"bf16 {batch}x64", "bf16 64x96"], trace.captured(GEMM if named else None))
            trace.operator(
                "_C::rms_norm",
                [f"bf16 {batch}x64", f"bf16 {batch}x64", "bf16 64", "1e-6"],
                trace.captured("rms", (batch, 1, 1)) if named else trace.captured(),
            )

        trace.capture(layer, layer, annotation=f"capture_{batch}_FULL")
    return trace


def replayed_trace(batch, times=1):
    trace = Trace()
    for _ in range(times):
        trace.replay(
            *[(GEMM, 5), ("rms", 2, (batch, 1, 1))] * 2,
            annotation=f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}(sq{batch}sk9sqsq1sqsk1)",
        )
    return trace


@pytest.mark.parametrize("named", [True, False])
def test_replays_get_the_operators_of_their_capture(take, named):
    found = take(replayed_trace(16, times=3), captured_trace([8, 16, 32], named))
    assert found.graph_ns == found.joined_ns == found.mapped_ns == 3 * 14_000
    assert shapes(found)["gemm_bf16"][:3] == (6, 30_000, {"m": 16, "n": 96, "k": 64, "bias_rows": 0})
    assert shapes(found)["rms_norm"][0] == 6


def test_a_capture_without_its_replay_says_which_file_is_missing(take):
    found = take(captured_trace([8, 16], True))
    assert not found.shapes and capture_warnings(found) == [
        "only the capture of 2 CUDA graphs, no GPU work; name the profile of the replay too"
    ]


def test_replays_without_their_capture_say_which_file_is_missing(take):
    found = take(replayed_trace(16))
    assert found.mapped_ns == found.joined_ns == 0
    assert any("the trace of the capture" in each for each in capture_warnings(found))
    [*left] = found.unmapped
    assert {each.reason for each in left} == {"in a CUDA graph whose capture is in no file"}


def test_captures_of_several_sizes_are_never_guessed(take):
    replay = Trace()
    replay.replay((GEMM, 5), ("rms", 2), (GEMM, 5), ("rms", 2))
    found = take(replay, captured_trace([8, 16], named=False))
    assert found.joined_ns == 0 and any("fits several captures" in each for each in capture_warnings(found))


def test_a_replay_with_a_kernel_more_is_joined_by_names(take):
    replay = Trace()
    replay.replay((GEMM, 5), ("memcpy32_post", 1), ("rms", 2, (8, 1, 1)), (GEMM, 5), ("rms", 2, (8, 1, 1)))
    found = take(replay, captured_trace([8, 16]))
    assert (found.joined_ns, found.graph_ns) == (14_000, 15_000)
    assert shapes(found)["gemm_bf16"][2]["m"] == 8


def test_copies_in_a_graph_and_one_launch_told_twice(take):
    capturing = Trace()

    def twice():
        told = {"correlation": capturing.identity()}
        capturing.event("cuda_runtime", "cudaLaunchKernelExC", capturing.now, 0.5, told)
        capturing.event("cuda_driver", "cuLaunchKernelEx", capturing.now + 0.1, 0.1, told)
        capturing.now += 1

    def copied():
        told = {"correlation": capturing.identity()}
        capturing.event("cuda_runtime", "cudaMemcpyAsync", capturing.now, 0.5, told)
        capturing.now += 1

    capturing.capture(copied, lambda: capturing.operator("aten::mm", ["bf16 8x64", "bf16 64x96"], twice))
    with_copy, without = Trace(), Trace()
    with_copy.replay(("Memcpy DtoD (Device -> Device)", 1), (GEMM, 5))
    without.replay((GEMM, 5))
    for replay in (with_copy, without):
        assert shapes(take(replay, capturing))["gemm_bf16"][:2] == (1, 5_000)


def test_lengths_at_the_capture_are_not_those_of_the_replay(take):
    """A server captures with the longest context that it allows; the step's annotation tells the real one."""
    operands = ["bf16 8x32x128", "bf16 90x16x8x128", "bf16 90x16x8x128", "", "", "", "", "i32 9", "", "", "", "i32 8"]
    operands += ["1", "131072", "i32 8x8192"]
    capturing, eager, told, untold = Trace(), Trace(), Trace(), Trace()
    capturing.capture(lambda: capturing.operator("_vllm_fa3_C::fwd", operands, capturing.captured("fa3")))
    eager.operator("_vllm_fa3_C::fwd", operands, eager.kernel("fa3"))
    told.replay(("fa3", 5), annotation="execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk8000sqsq8sqsk8000)")
    untold.replay(("fa3", 5))
    assert shapes(take(eager))["unified_attention"][3]["max_seq_len"] == 131072
    assert shapes(take(told, capturing))["unified_attention"][3]["max_seq_len"] == 1000
    [left] = take(untold, capturing).unmapped
    assert "give --context" in left.reason


def test_another_models_capture_is_no_match(take):
    replay = Trace()
    replay.replay(("a", 1), ("b", 1), ("c", 1), ("d", 1))
    found = take(replay, captured_trace([8]))
    assert found.joined_ns == 0 and any("fits no capture" in each for each in capture_warnings(found))


# ---------- kernels without a launch


def test_a_kernel_without_launch_takes_the_operator_of_its_equals(take):
    trace = Trace()
    trace.operator("aten::mm", ["bf16 5x64", "bf16 64x96"], trace.kernel(GEMM, 10, (4, 1, 1)))
    trace.kernel(GEMM, 11, (4, 1, 1), launched=False)()
    trace.kernel(GEMM, 12, (5, 1, 1), launched=False)()
    found = take(trace)
    [shape] = found.shapes
    assert (round(shape.calls), shape.time_ns, shape.inferred_ns) == (2, 21_000, 11_000)
    assert found.unmapped[0].time_ns == 12_000


def test_equals_of_two_shapes_tell_nothing(take):
    trace = Trace()
    for tokens in (5, 6):
        trace.operator("aten::mm", [f"bf16 {tokens}x64", "bf16 64x96"], trace.kernel(GEMM, 10, (4, 1, 1)))
    trace.kernel(GEMM, 11, (4, 1, 1), launched=False)()
    assert sum(each.inferred_ns for each in take(trace).shapes) == 0


# ---------- other doors


def nsys_export(path, names):
    """Two kernels of 10 us, each in one of the ranges."""
    base = sqlite3.connect(path)
    base.executescript(
        """
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
            streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
            nameId INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
            globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER);
        INSERT INTO StringIds VALUES (1, 'nvjet_tst_128'), (2, 'cudaLaunchKernel');
        """
    )
    process = 1 << 24
    for number, name in enumerate(names):
        start = 1000 * number
        base.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, ?, NULL, 0)", (start, start + 500, name, process + 7)
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 2)",
            (start + 10, start + 20, process + 7, number + 1),
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, 1, 1)",
            (50_000 + 20_000 * number, 60_000 + 20_000 * number, number + 1, process),
        )
    base.commit()
    base.close()
    return path


def test_nvtx_ranges_with_sizes(catalog, tmp_path):
    path = nsys_export(
        tmp_path / "a.sqlite",
        [
            "aten::mm, op_id = 12, sizes = [[5, 64], [64, 96]], input_op_ids = [(1, 0)]",
            "aten::mm, op_id = 13, sizes = [[5, 64], [64, 96]]",
            "{'Module': 'model.layers.0.qkv_proj', 'TrainableParams': {'weight': [96, 64]}, 'Inputs': [[5, 64]]}",
            "aten::mm, op_id = 14, sizes = [[5, 64",
        ],
    )
    found = capture(catalog, [open_profile(path, True)], {})
    assert shapes(found) == {"gemm_bf16": (3, 30_000, {"m": 5, "n": 96, "k": 64, "bias_rows": 0}, {})}
    assert found.total_ns == 40_000


def graph_export(path, chain=True):
    """A graph of two layers, captured in ranges with sizes by thread 101 of process 100, instantiated, replayed twice.
    chain: the copy's events name what they are a copy of."""
    with Export(path) as export:
        export.columns["CUDA_GRAPH_NODE_EVENTS"] = (
            "start INTEGER NOT NULL, end INTEGER, nameId INTEGER, eventClass INTEGER, globalTid INTEGER, "
            "graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER"
        )

        def node(start, number, original=None):
            thread = global_id(100, 101)
            own = {"graphNodeId": number, "originalGraphNodeId": original}
            export.row("CUDA_GRAPH_NODE_EVENTS", start=start, end=start + 1, globalTid=thread, **own)

        for layer in range(2):
            export.nvtx("aten::mm, seq = 1, sizes = [[5, 64], [64, 96]]", 100 * layer, 100 * layer + 50)
            for place in range(2):  # a GEMM in two kernels
                node(100 * layer + 10 + place, 10 * layer + place + 1)
            export.nvtx("softmax", 100 * layer + 60, 100 * layer + 70)
            node(100 * layer + 65, 10 * layer + 3)
        for number in (1, 2, 3, 11, 12, 13):
            node(1000 + number, 100 + number, number if chain else None)
        for replay in range(2):
            begin = 2000 + 1000 * replay
            export.call("cudaGraphLaunch_v10000", begin, begin + 10, 70 + replay)
            for place, number in enumerate((101, 102, 103, 111, 112, 113)):
                start = begin + 100 + 20 * place
                export.kernel(GEMM, start, start + 10, 70 + replay)
                export.connection.execute(
                    "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = ? WHERE start = ?", (number, start)
                )
    return path


def test_nsys_tells_where_each_kernel_of_a_graph_was_captured(catalog, tmp_path):
    found = capture(catalog, [open_profile(graph_export(tmp_path / "graph.sqlite"), True)], {})
    assert shapes(found) == {"gemm_bf16": (4, 80, {"m": 5, "n": 96, "k": 64, "bias_rows": 0}, {})}
    assert (found.total_ns, found.graph_ns, found.joined_ns) == (120, 120, 80)
    assert not [each for each in capture_warnings(found) if "profile the server's start" in each]


def test_nodes_that_are_a_copy_of_none_known(catalog, tmp_path):
    found = capture(catalog, [open_profile(graph_export(tmp_path / "graph.sqlite", chain=False), True)], {})
    assert not found.shapes and found.joined_ns == 0 and found.graph_ns == 120
    assert any("profile the server's start" in each for each in capture_warnings(found))


def test_a_folder_of_flashinfers_dumps_becomes_workloads(tmp_path):
    def dump(name, api, axes, dtype="bfloat16"):
        inputs = {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": dtype}}
        text = {
            "name": name,
            "op_type": "rmsnorm",
            "tags": [f"fi_api:{api}"],
            "axes": axes,
            "inputs": inputs,
            "outputs": {},
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(text))

    axes = {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 4096}}
    dump("rmsnorm_h4096", "flashinfer.norm.rmsnorm", axes)
    dump("rmsnorm_f32", "flashinfer.norm.rmsnorm", axes, "float32")
    dump("other", "flashinfer.comm.allreduce", axes)
    (tmp_path / "notes.json").write_text('["of something else"]')
    answer = kernelderby.open(CHECKOUT).capture(tmp_path, gain=False, tokens=(1, 64))
    assert [each["sizes"] for each in answer.frame("shapes").to_dicts()] == [
        "num_tokens=1 hidden_size=4096",
        "num_tokens=64 hidden_size=4096",
    ]
    reasons = {each["reason"] for each in answer.frame("unmapped").to_dicts()}
    assert reasons == {"is not of bfloat16", "no operator of the set"}


def test_tokens_without_a_dump_are_not_left_out_in_silence():
    with pytest.raises(DerbyError, match="--tokens goes with a folder of FlashInfer's fi_trace"):
        kernelderby.open(CHECKOUT).capture(CHECKOUT / "profiles/example_server.json", tokens=(1,))


def test_a_folder_of_other_json_is_refused(tmp_path):
    (tmp_path / "notes.json").write_text('["of something else"]')
    with pytest.raises(DerbyError, match="a folder without a .json of FlashInfer; name a profile file in it"):
        kernelderby.open(CHECKOUT).capture(tmp_path, gain=False, tokens=(1,))


# ---------- gain, the set


def server(tmp_path, gpu="NVIDIA H200"):
    """A step of which rms_norm takes a quarter, at a shape that is recorded, and one that is near it."""
    trace = Trace(gpu)
    trace.operator("_C::rms_norm", ["bf16 4096x4096", "bf16 4096x4096", "bf16 4096", "1e-6"], trace.kernel("rms", 250))
    trace.operator("aten::mul", ["bf16 5x64", "bf16 5x64"], trace.kernel("other", 750))
    return trace.write(tmp_path / "server.json")


def test_gain_over_the_whole_profile(tmp_path):
    pytest.importorskip("torch")  # the definitions count with it
    answer = kernelderby.open(CHECKOUT).capture(server(tmp_path))
    [row] = answer.frame("shapes").to_dicts()
    gains = answer.value.gains
    assert row["time_us"] == 250 and row["share"] == 0.25
    assert 0 < row["floor_us"] < row["best_us"] < 250
    assert row["saved_us"] == pytest.approx(250 - row["best_us"])
    assert gains.saved_ns / gains.total_ns == pytest.approx(row["saved_us"] / 1000)
    assert all(len(line) <= 80 for line in answer.to_text(80).splitlines())


def test_no_recorded_gpu_no_gain(tmp_path):
    pytest.importorskip("torch")  # the definitions count with it
    answer = kernelderby.open(CHECKOUT).capture(server(tmp_path, "NVIDIA B200"))
    [row] = answer.frame("shapes").to_dicts()
    assert row["floor_us"] and row["best_us"] is None and row["saved_us"] == 0
    assert "no recorded rows of NVIDIA B200" in answer.to_text()
    other = kernelderby.open(CHECKOUT).capture(server(tmp_path, "NVIDIA B200"), gpu="NVIDIA H200")
    assert "no machine gains this" in " ".join(other.to_text().split())


def test_the_set_can_be_packed_and_raced(tmp_path, monkeypatch):
    pytest.importorskip("torch")  # the definitions count with it
    file, out = server(tmp_path), tmp_path / "set"
    kernelderby.open(CHECKOUT).capture(file, gain=False, out=out)
    made = Catalog.open(out, strict=True)
    [workload] = made.workloads("rms_norm")
    assert (workload.origin, workload.call_count, workload.importance) == ("capture", 1, 25.0)
    assert workload.source["operator"] == "_C::rms_norm" and workload.cost is not None
    assert {each.author for each in made.solutions.values()} >= {"baseline", "kernelderby"}
    monkeypatch.setattr("kernelderby.api.capture._packed", lambda *_: [])  # which takes seconds
    kernelderby.open(CHECKOUT).capture(file, gain=False, out=out)  # again: the same line, not two
    assert len(Catalog.open(out).workloads("rms_norm")) == 1


def test_out_is_never_the_set_itself_or_a_strangers_folder(tmp_path):
    file = server(tmp_path)
    for out in (CHECKOUT, tmp_path, file):
        with pytest.raises(DerbyError, match="--out"):
            kernelderby.open(CHECKOUT).capture(file, gain=False, out=out)


@pytest.mark.parametrize("line", ['{"a"', "[]", '{"workload": 5}', '{"workload": {"uuid": [1]}}', "null"])
def test_a_broken_line_in_an_older_capture_stays_with_its_file(tmp_path, monkeypatch, line):
    monkeypatch.setattr("kernelderby.api.capture._packed", lambda *_: [])
    file, path = server(tmp_path), tmp_path / "set/workloads/norm/rms_norm.jsonl"
    kernelderby.open(CHECKOUT).capture(file, gain=False, out=tmp_path / "set")
    text = f"{path.read_text()}{line}\n"
    path.write_text(text)
    with pytest.raises(DerbyError, match="rms_norm.jsonl:2: "):
        kernelderby.open(CHECKOUT).capture(file, gain=False, out=tmp_path / "set")
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"origin": "survey"}, "origin of other shapes"),
        ({"origin": ""}, "is no word"),
        ({"selection": make_selection(within="nothing")}, "nothing in these files is ranges nothing"),
    ],
)
def test_words_that_mean_nothing(tmp_path, options, message):
    with pytest.raises(DerbyError, match=message):
        kernelderby.open(CHECKOUT).capture(server(tmp_path), gain=False, **options)
    with pytest.raises(DerbyError, match="named twice"):
        kernelderby.open(CHECKOUT).capture(*[server(tmp_path)] * 2)


def test_sums_alone_are_refused(tmp_path):
    table = tmp_path / "sums.csv"
    table.write_text("Time (%),Total Time (ns),Instances,Name\n100.0,1000,1,k\n")
    with pytest.raises(DerbyError, match="sums alone"):
        kernelderby.open(CHECKOUT).capture(table)


@pytest.mark.parametrize(
    "change",
    [
        {"Input Dims": "no list"},
        {"Input Dims": [[1, "2"], {"a": 1}, [[1], [2]], None, [-1]]},
        {"Input type": [["float"], 7, None]},
        {"Concrete Inputs": [1, None, {}]},
        {"External id": "none"},
        {"Input Dims": [[10**30, 64], [64, 96]]},
    ],
)
def test_odd_arguments_are_no_shapes_and_no_traceback(catalog, tmp_path, change):
    trace = Trace()
    trace.operator("aten::mm", ["bf16 5x64", "bf16 64x96"], trace.kernel(GEMM))
    trace.operator("aten::mm", ["bf16 7x64", "bf16 64x96"], trace.kernel(GEMM))
    odd = next(event for event in trace.events if event["cat"] == "cpu_op")
    odd["args"] |= change
    found = capture(catalog, [open_profile(trace.write(tmp_path / "odd.json"), True)], {})
    assert found.total_ns == 20_000 and found.mapped_ns >= 10_000
