"""Real kernel names: of published serving and training traces of NVIDIA and AMD GPUs, and of the sources of libraries.

tests/data/profile/kernel_names.csv: name (cut off behind 420 characters), the library and role that reading it gave,
element type, architecture, and where it stands: a trace as "owner/repository: path", or a
repository whose source has it.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest

from kernelderby.profile.kernels.attribution import UNKNOWN, Role, attribute, known_names
from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.spans import KernelSum, Profile, SpanKind

NAMES = Path(__file__).parents[1] / "data" / "profile" / "kernel_names.csv"
with NAMES.open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


def test_real_names():
    wrong = {}
    for row in ROWS:
        found = attribute(row["name"])
        parts = found.library, found.role.value, found.dtype or "", found.architecture or ""
        if parts != (row["library"], row["role"], row["dtype"], row["architecture"]):
            wrong[row["name"]] = parts
    assert wrong == {}


def test_the_corpus_is_wide():
    assert all(row["source"] for row in ROWS) and len({row["source"] for row in ROWS}) > 30
    assert Counter(row["library"] for row in ROWS).keys() >= {
        *("DeepEP", "DeepSeek", "NCCL", "RCCL", "cuBLAS", "cuDNN", "CUB", "PyTorch ATen", "Triton", "Apex"),
        *("FBGEMM", "FlashAttention 3", "FlashInfer", "TensorRT-LLM", "vLLM", "sgl-kernel", "SGLang", "fla", "Liger"),
        *("hipBLASLt", "MIOpen", "Composable Kernel", "AITER", "FlyDSL", "TransformerEngine", "Mamba"),
    }
    assert sum(row["library"] == UNKNOWN for row in ROWS) < 0.05 * len(ROWS)


def test_a_plain_name_is_no_evidence_of_triton():
    for name in ("hgemm_128x128x8_NN", "nvkernel_foo_F1L10_2", "my_softmax_kernel", "softmax_kernel"):
        assert attribute(name).library == UNKNOWN, name
    assert attribute("hgemm_128x128x8_NN").role is Role.GEMM  # its words still show its role
    assert attribute("void l2norm_fwd_kernel<float>(int)").library == UNKNOWN  # Triton's has no template arguments
    assert attribute("fused_layer_norm_kernel_0d1d2d3d4").library == "Triton"  # Triton 2's signature proves it


@pytest.mark.parametrize(
    "name, library, role",
    [  # names that were once attributed wrongly
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x32_execute_kernel_trt", "TensorRT", "GEMM"),
        ("sm86_xmma_fprop_implicit_gemm_indexed_tf32f32_execute_kernel_trt", "TensorRT", "convolution"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x32_cublas", "cuBLAS", "GEMM"),
        ("Cijk_Ailk_Bljk_HHS_BH_Bias_HAS_SAV_UserArgs_MT64x64x64_SN", "hipBLASLt", "GEMM"),
        ("Cijk_Ailk_Bljk_HB_MT64x64x32_SN", "rocBLAS/Tensile", "GEMM"),
        ("void magma_sgemmEx_kernel<float, __half, float, true, false, 6, 3, 5, 3, 3>(int)", "cuBLAS", "GEMM"),
        ("void cusparse::load_balancing_kernel<32u, int>(int)", "cuSPARSE", "GEMM"),
        ("void transfer_kernel_impl<&(get_global_offset_ph<char>), true>(int)", "SGLang", "copy"),
        (
            "void paged_attention_ll4mi_reduce_kernel<_Float16, _Float16, 64, 64, 256, 1, true>(int)",
            "AITER",
            "attention",
        ),
        ("void paged_attention_ll4mi_reduce_kernel<_Float16, _Float16, 64, 64, 256, 1>(int)", "vLLM", "attention"),
        ("mfma_moe2_afp8_wfp4_bf16_atomic_t64x128x256", "FlyDSL", "grouped GEMM"),
        ("ncclSymDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymDevArgs)", "NCCL", "communication"),
        ("void spRadix0064B::kernel1Mem<unsigned int, float, (fftDirection_t)1>(int)", "cuFFT", "FFT"),
        ("void cutensor_internal_namespace::reduction_kernel<float>(int)", "cuTENSOR", "GEMM"),
        ("delayStreamKernel(long long)", "TensorRT-LLM", "wait"),
        ("triton_", "Triton", "unknown"),
        ("broadcast_kernel(CuKernelContext, CuDeviceArray<Float32, 2, 1>, Int64)", "CUDA.jl", "elementwise"),
        ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "cuDNN", "convolution"),
        (
            "void at::native::(anonymous namespace)::upsample_nearest2d_out_frame<float>(int)",
            "PyTorch ATen",
            "pooling/resize",
        ),
        ("void cutlass::Kernel<cutlass::gemm::kernel::MoeFCGemm<int>>(T1::Params)", "TensorRT-LLM", "grouped GEMM"),
        ("void tensorrt_llm::kernels::cutlass_kernels::MoeFCGemm<int>(T1)", "TensorRT-LLM", "grouped GEMM"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)", "Apex", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_10", "Triton", "elementwise"),
        ("triton_red_fused_moe_forward_mean_mul_pow_rsqrt_3", "Triton", "norm"),
    ],
)
def test_what_was_wrong_once(name, library, role):
    found = attribute(name)
    assert (found.library, found.role.value) == (library, role)


def test_element_types():
    assert attribute("ncclDevKernel_AllGather_RING_LL_Sum_int8_t(int)").dtype is None  # bytes of whatever type
    assert attribute("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_").dtype == "bfloat16"
    assert attribute("_ZN5aiter20some_rms_norm_kernelIDF16_EEvPT0_").dtype == "float16"


class Sums(Profile):
    def __init__(self, names, gpu=None):
        super().__init__(Path("made.csv"), "made by hand", gpu)
        self._sums = [KernelSum(SpanKind.KERNEL, name, 1, 10.0) for name in names]

    def sums(self):
        return self._sums


def test_on_an_amd_gpu_names_of_nccl_are_rccls():
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert summarise(Sums([name])).rows[0].library == "NCCL"
    assert summarise(Sums([name], "AMD Instinct MI300X")).rows[0].library == "RCCL"
    beside = summarise(Sums([name, "Cijk_Alik_Bljk_BBS_BH_MT256x32x64_MI16x16x1_SN"])).by_library
    assert {total.key for total in beside} == {"RCCL", "rocBLAS/Tensile"}


def test_known_names_hold_no_word_that_any_project_could_choose():
    names = known_names()
    assert len(names) > 1000
    assert not {"softmax_kernel", "add_kernel", "gemm_kernel", "_fwd_kernel", "matmul_kernel", "rms_norm_kernel"} & set(
        names
    )


def test_a_function_is_known_without_the_word_kernel_and_without_its_namespace():
    assert attribute("dynamic_per_group_scaled_quant").library == "AITER"
    assert attribute("void dynamic_per_group_scaled_quant_kernel<float>(float*)").library == "AITER"
    assert attribute("aiter::dynamic_per_group_scaled_quant_kernel<float>").rule == "aiter.other"  # as it ever was


def test_where_the_time_goes_stands_under_the_title():
    from kernelderby.report.profile.kernels import kernels_report

    names = ["nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "volta_sgemm_128x64_nn", "flash_fwd_kernel<int>", "my_odd_thing"]
    facts = kernels_report(summarise(Sums(names)), ()).facts
    assert facts[1] == "time goes to GEMM 50.0%, attention 25.0%, unknown 25.0%"
