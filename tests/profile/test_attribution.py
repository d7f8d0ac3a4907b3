"""Rules: every example, no shadowing, and the document whose table is profiles/sglang_llama_h200.csv."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from kernelderby.errors import DerbyError
from kernelderby.profile.kernels import attribution
from kernelderby.profile.kernels.attribution import (
    RULES,
    UNKNOWN,
    Role,
    attribute,
    first_match,
    last_rules,
    rules,
    table,
)
from kernelderby.profile.names import normal_form, short_name, split
from kernelderby.profile.spans import SpanKind
from kernelderby.store.demangle import outline

DATA = Path(__file__).parents[2] / "profiles" / "sglang_llama_h200.csv"

# Where the document's "source given" is not ours: its file -> (ours, why).
DISAGREEMENTS = {
    "pytorch/aten/src/ATen/cuda/CUDABlas.cpp": (
        None,
        "the host code of PyTorch that calls cuBLAS; the kernel is in the closed libcublas, and the name does not say "
        "who called it",
    ),
    "flashinfer/flashinfer/jit/activation.py": (
        "flashinfer/include/flashinfer/activation.cuh",
        "the Python that generates the instantiation; act_and_mul_kernel itself stands in the header",
    ),
}


def document():
    lines = [line for line in DATA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


EVERY = (*rules(), *last_rules())
EXAMPLES = [(rule.id, example) for rule in EVERY for example in rule.examples]
OTHERS = [
    (kind, rule.id, example)
    for kind in ("role", "dtype", "architecture")
    for rule in table(kind)
    for example in rule.examples
]


def test_rules_have_examples_and_unique_ids():
    assert all(rule.examples for rule in EVERY)
    assert all(rule.examples for kind in ("role", "dtype", "architecture") for rule in table(kind))
    assert [name for name, count in Counter(rule.id for rule in EVERY).items() if count > 1] == []


def test_no_rule_shadows_another_ones_example():
    found = [(attribute(example).rule, example) for _, example in EXAMPLES]
    assert [pair for pair, wanted in zip(found, EXAMPLES, strict=True) if pair != wanted] == []


def test_examples_of_roles_dtypes_and_architectures():
    wrong = {}
    for kind, identity, example in OTHERS:
        text = normal_form(example)
        name, template, _ = split(text)
        where = {"role": name, "dtype": f"{name}<{template}>" if template else name, "architecture": text}[kind]
        found = first_match(table(kind), where)
        if not found or found[0].id != identity:
            wrong[identity, example] = found
    assert wrong == {}


def test_every_rule_has_library_and_role_for_its_examples():
    """Only the catch-all of a library may leave the role open."""
    for rule in EVERY:
        assert rule.value
        if not rule.id.endswith(".other"):
            assert all(attribute(example).role != Role.UNKNOWN for example in rule.examples), rule.id


# --- the document ---


def test_every_row_of_the_document_has_library_and_role():
    rows = document()
    assert len(rows) == 66
    for row in rows:
        found = attribute(row["Name"])
        assert found.library != UNKNOWN and found.role != Role.UNKNOWN, row["Name"]
        assert not found.is_guess, row["Name"]


def test_the_documents_own_sources_agree():
    given = [row for row in document() if row["Source given"]]
    assert len(given) == 12
    for row in given:
        theirs = row["Source given"].replace("Rebuilt-PyTorch/pytorch-v2.8.0/", "pytorch/")
        expected = DISAGREEMENTS[theirs][0] if theirs in DISAGREEMENTS else theirs
        assert attribute(row["Name"]).source_file == expected, row["Name"]
    assert {row["Source given"] for row in given} >= set(DISAGREEMENTS)


def test_totals_of_the_document_by_hand():
    """Its first column is each row's share; the sum of all rows is 9.936 s."""
    rows = document()
    whole = sum(float(row["Total Time (ns)"]) for row in rows)
    assert whole == pytest.approx(9.936e9, rel=1e-4)
    for row in rows:
        assert 100 * float(row["Total Time (ns)"]) / whole == pytest.approx(float(row["Time (%)"]), abs=0.051)
    old = sum(float(row["Total Time (ns)"]) for row in rows if attribute(row["Name"]).architecture == "sm_80")
    assert old == pytest.approx(8.8947e9, rel=1e-4)  # ten ampere_ and cutlass_80_ kernels


@pytest.mark.parametrize(
    "start, expected",
    [
        ("ampere_bf16_s1688gemm_bf16_128x128", ("cuBLAS", "GEMM", "bfloat16", "sm_80")),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16", ("cuBLAS", "GEMM", "float16", "sm_80")),
        ("void flashinfer::BatchQKApplyRotary", ("FlashInfer", "rope", "bfloat16", None)),
        (
            "void at_cuda_detail::cub::DeviceScanKernel",
            ("CUB", "sort/scan", "int64", None),
        ),  # Policy900 betrays nothing
        ("triton_poi_fused_clamp_sub_0", ("Triton", "elementwise", None, None)),
        ("create_flashinfer_kv_indices_triton", ("Triton", "gather/scatter", None, None)),
        (
            "void at::native::vectorized_gather_kernel",
            ("PyTorch ATen", "gather/scatter", None, None),
        ),  # long: the index
        ("std::enable_if<!T7, void>::type internal::gemvx", ("cuBLAS", "GEMM", "bfloat16", None)),
    ],
)
def test_rows_of_the_document(start, expected):
    name = next(row["Name"] for row in document() if row["Name"].startswith(start))
    found = attribute(name)
    assert (found.library, found.role.value, found.dtype, found.architecture) == expected


# --- the stages of a published MoE pipeline and of a published decode layer, by the short names that they print ---


@pytest.mark.parametrize(
    "name, library, role",
    [
        ("moe_fused_gate_kernel", "sgl-kernel", "routing"),
        ("compute_expert_offsets", "sgl-kernel", "routing"),
        ("compute_problem_sizes", "sgl-kernel", "routing"),
        ("compute_arg_sorts", "sgl-kernel", "routing"),
        ("shuffleRowsKernel<fp8>", "sgl-kernel", "gather/scatter"),
        ("GemmUniversal<GroupProblemShape>", "CUTLASS", "grouped GEMM"),
        ("get_group_gemm_starts", "sgl-kernel", "grouped GEMM"),
        ("swiglu_quant_kernel", "Triton", "quantisation"),
        ("apply_shuffle_mul_sum_kernel", "sgl-kernel", "gather/scatter"),
        ("unrolled_elementwise_kernel", "PyTorch ATen", "elementwise"),
        ("deep_gemm::sm100_fp8_gem", "DeepGEMM", "GEMM"),
        ("mhaSm100fKernel_Qkv", "TensorRT-LLM", "attention"),
        ("deep_ep::internode_ll::dispatch", "DeepEP", "communication"),
        ("nvjet_tst_64x32_64x16_2x4_2", "cuBLAS", "GEMM"),
        ("topk", UNKNOWN, "routing"),
    ],
)
def test_short_names_find_library_and_role(name, library, role):
    found = attribute(name)
    assert (found.library, found.role.value) == (library, role)


def test_guesses_say_so():
    assert attribute("compute_arg_sorts").is_guess  # vLLM has it too
    assert not attribute("moe_fused_gate_kernel").is_guess


def test_unknown_names_stay_unknown():
    for name in ("", "Foo", "my_fancy_kernel", "my_app::Foo<int>(float *)", "void <unnamed>::helper(int)"):
        found = attribute(name)
        assert (found.library, found.role, found.rule) == (UNKNOWN, Role.UNKNOWN, "")


def test_copies_are_the_drivers():
    found = attribute("[CUDA memcpy Host-to-Device]", SpanKind.MEMCPY)
    assert (found.library, found.role) == ("CUDA", Role.MEMCPY)
    assert attribute("[CUDA memset]", SpanKind.MEMSET).role == Role.MEMSET


# --- one kernel, three profilers ---


@pytest.mark.parametrize(
    "nsys, cupti",
    [
        (
            "void at::native::<unnamed>::indexSelectSmallIndex<c10::BFloat16, (int)2, (int)-2>(int)",
            "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, 2, -2>(int)",
        ),
        (
            "void f<g(int)::[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], (bool)0>(T1)",
            "void f<g(int)::{lambda()#3}::operator ()() const::{lambda(float)#1}, 0>(T1)",
        ),
        ("void a<b<c<(unsigned int)128>>>(T1)", "void a<b<c<128u> > >(T1)"),
    ],
)
def test_one_normal_form(nsys, cupti):
    assert normal_form(nsys) == normal_form(cupti)


@pytest.mark.parametrize(
    "mangled, readable",
    [
        ("_Z11racy_kernelPKfPf", "racy_kernel"),
        ("_ZN12_GLOBAL__N_16kernelEPf", "kernel"),
        ("_ZN4vllm15rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fii", "vllm::rms_norm_kernel<c10::BFloat16>"),
        (
            "_ZN7cutlass7Kernel2I50cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4EEvNT_6ParamsE",
            "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>",
        ),
        (
            "_ZN9deep_gemm4implILj128ELNS_8GemmTypeE1ELb0EN7cutlass10bfloat16_tEEEvPi",
            "deep_gemm::impl<128, (GemmType)1, 0, cutlass::bfloat16_t>",
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
            "at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char, 3>>",
        ),
    ],
)
def test_outlines_of_mangled_names(mangled, readable):
    assert outline(mangled) == readable


@pytest.mark.parametrize("length", range(0, 90, 7))
def test_a_mangled_name_that_was_cut_off_never_fails(length):
    whole = "_ZN9deep_gemm24sm100_fp8_gemm_1d1d_implILN4cute4UMMA5MajorE0ELS3_0ELj0ELNS_8GemmTypeE1EEEvPi"
    attribute(whole[:length])


@pytest.mark.parametrize(
    "name, short",
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm>(T1::Params)", "cutlass_80_tensorop_f16_s16816gemm"),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<c10::BFloat16>, "
            "std::array<char *, (unsigned long)1>>(int, T2, T3)",
            "vectorized_elementwise_kernel<FillFunctor<bf16>>",
        ),
        (
            "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float>>(T1 *, const T1 *, int)",
            "act_and_mul_kernel<bf16, silu<float>>",
        ),
        ("deep_ep::internode_ll::dispatch", "internode_ll::dispatch"),
        ("[CUDA memset]", "[CUDA memset]"),
        ("(unnamed kernel)", "(unnamed kernel)"),
    ],
)
def test_short_names_for_tables(name, short):
    assert short_name(name) == short


def test_a_direct_copy_shows_its_type():
    name = next(row["Name"] for row in document() if "direct_copy" in row["Name"] and "c10::BFloat16" in row["Name"])
    assert short_name(name) == "elementwise_kernel<direct_copy_kernel_cuda(bf16)>"


def test_a_broken_rule_is_one_line(tmp_path):
    (tmp_path / "10_x.toml").write_text('[[rule]]\nid = "x"\nlibrary = "X"\npattern = "("\nexamples = ["x"]\n')
    with pytest.raises(DerbyError, match="10_x.toml: rule x"):
        attribution._read(tmp_path / "10_x.toml", "rule")


def test_rules_are_in_the_package():
    assert {path.name for path in RULES.glob("*.toml")} >= {"roles.toml", "dtypes.toml", "architectures.toml"}
