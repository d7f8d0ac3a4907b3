// Every width and operand form of wgmma.cuh, one kernel each, for test_wgmma.py.
#include "tma.cuh"
#include "wgmma.cuh"

using namespace derby;

enum Form { SS, SS_B_MN, SS_A_MN, RS, RS_B_MN, SS_E4M3, RS_E4M3 };

// d [64, N] += a b of one step along k. operands: a, then b at 32,768 bytes, as they are to lie in shared memory.
// a_registers: four words a thread. leading: of MN-major operands.
template <int N, Form FORM, Swizzle SWIZZLE>
__global__ void product(float* d, const uint4* operands, const uint32_t* a_registers, int leading) {
    extern __shared__ __align__(1024) uint4 shared[];
    for (int i = threadIdx.x; i < 65536 / 16; i += blockDim.x) shared[i] = operands[i];
    fence_async_proxy();
    __syncthreads();
    float sums[N / 2];
    for (int i = 0; i < N / 2; ++i) sums[i] = d[i * 128 + threadIdx.x];
    uint32_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = a_registers[i * 128 + threadIdx.x];
    const uint64_t a = descriptor_of<SWIZZLE>(descriptor_low(shared_address(shared), leading));
    const uint64_t b = descriptor_of<SWIZZLE>(descriptor_low(shared_address(shared) + 32768, leading));
    wgmma_fence();
    if constexpr (FORM == SS) wgmma_bf16<N>(sums, a, b, 1);
    if constexpr (FORM == SS_B_MN) wgmma_bf16<N, Major::K, Major::MN>(sums, a, b, 1);
    if constexpr (FORM == SS_A_MN) wgmma_bf16<N, Major::MN, Major::K>(sums, a, b, 1);
    if constexpr (FORM == RS) wgmma_bf16_rs<N>(sums, words, b, 1);
    if constexpr (FORM == RS_B_MN) wgmma_bf16_rs<N, Major::MN>(sums, words, b, 1);
    if constexpr (FORM == SS_E4M3) wgmma_e4m3<N>(sums, a, b, 1);
    if constexpr (FORM == RS_E4M3) wgmma_e4m3_rs<N>(sums, words, b, 1);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    pin<N / 2>(sums);
    for (int i = 0; i < N / 2; ++i) d[i * 128 + threadIdx.x] = sums[i];
}

template <int N, Form FORM, Swizzle SWIZZLE>
int launch(float* d, const void* operands, const void* words, int leading) {
    cudaFuncSetAttribute(product<N, FORM, SWIZZLE>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
    product<N, FORM, SWIZZLE><<<1, 128, 65536>>>(d, (const uint4*)operands, (const uint32_t*)words, leading);
    return cudaDeviceSynchronize();
}

template <int N, Form FORM>
int swizzled(int swizzle, float* d, const void* operands, const void* words, int leading) {
    if (swizzle == 128) return launch<N, FORM, Swizzle::B128>(d, operands, words, leading);
    if (swizzle == 64) return launch<N, FORM, Swizzle::B64>(d, operands, words, leading);
    return launch<N, FORM, Swizzle::B32>(d, operands, words, leading);
}

template <int N = 8>
int formed(int n, int form, int swizzle, float* d, const void* operands, const void* words, int leading) {
    if (N == n) {
        switch (form) {
            case SS: return launch<N, SS, Swizzle::B128>(d, operands, words, leading);
            case SS_E4M3: return launch<N, SS_E4M3, Swizzle::B128>(d, operands, words, leading);
            case RS: return launch<N, RS, Swizzle::B128>(d, operands, words, leading);
            case RS_E4M3: return launch<N, RS_E4M3, Swizzle::B128>(d, operands, words, leading);
        }
    }
    if constexpr (N < 256) return formed<N + 8>(n, form, swizzle, d, operands, words, leading);
    return -1;
}

// Widths of 64 with each swizzle in each form, all other widths with 128 bytes and K-major operands.
extern "C" int product_run(int n, int form, int swizzle, float* d, const void* operands, const void* words,
                           int leading) {
    if (n != 64) return formed(n, form, swizzle, d, operands, words, leading);
    switch (form) {
        case SS: return swizzled<64, SS>(swizzle, d, operands, words, leading);
        case SS_B_MN: return swizzled<64, SS_B_MN>(swizzle, d, operands, words, leading);
        case SS_A_MN: return swizzled<64, SS_A_MN>(swizzle, d, operands, words, leading);
        case RS: return swizzled<64, RS>(swizzle, d, operands, words, leading);
        case RS_B_MN: return swizzled<64, RS_B_MN>(swizzle, d, operands, words, leading);
        case SS_E4M3: return swizzled<64, SS_E4M3>(swizzle, d, operands, words, leading);
        default: return swizzled<64, RS_E4M3>(swizzle, d, operands, words, leading);
    }
}
