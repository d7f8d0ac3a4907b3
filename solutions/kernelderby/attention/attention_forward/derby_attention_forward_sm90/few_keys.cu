// attention_forward for sequences of few keys: a warp takes one query of one head. Setting up tensor cores, tensor maps
// and shared memory does not pay here. A call waits for memory once if there is one sequence, and twice more if a
// token's sequence has to be found. Each lane has eight columns, so a warp holds several keys at a time: its groups of
// lanes take the keys in turn and add their results at the end, always in the same order. All arithmetic is in float32.
// Constraints: sm_90; head_dim a multiple of 8 up to 256; as many query heads as key heads; bf16, contiguous,
// addresses a multiple of 16; cu_seqlens int32, ascending, from 0.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

constexpr int WARPS = 4;
constexpr float LOG2_E = 1.4426950408889634f;

struct Call {
    const uint4 *query, *key, *value;        // bfloat16 [tokens, heads, head_dim], eight columns an element
    const int *cu_seqlens_q, *cu_seqlens_k;  // [num_seqs + 1], read only if there are several sequences
    uint4* output;                           // like query
    int num_tokens, num_keys, num_seqs, heads;
    int chunks, lanes;                       // head_dim / 8; the least power of two that is not less
    float scale_log2;                        // sm_scale * log2(e)
};

// Two bfloat16 in one word.
__device__ __forceinline__ float low_of(uint32_t two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_of(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }

// The last sequence that begins at or before the token, and so holds it. The warp looks at 32 places at once.
__device__ __forceinline__ int sequence_of(const Call& call, int token, int lane) {
    int low = 0, count = call.num_seqs;
    while (count > 1) {
        const int step = (count + 31) / 32;
        const bool before = lane * step < count && call.cu_seqlens_q[low + lane * step] <= token;
        const int last = __popc(__ballot_sync(~0u, before)) - 1;  // they rise, so the first lanes say yes
        count = min(step, count - last * step);
        low += last * step;
    }
    return low;
}

__global__ void __launch_bounds__(32 * WARPS) derby_few_keys_attention(const Call call) {
    const int place = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (place >= call.num_tokens * call.heads) return;
    const int token = place / call.heads, head = place - token * call.heads;
    int first = 0, end = call.num_keys;
    if (call.num_seqs > 1) {
        const int sequence = sequence_of(call, token, lane);
        first = call.cu_seqlens_k[sequence];
        end = call.cu_seqlens_k[sequence + 1];
    }
    const int chunk = lane & (call.lanes - 1), group = lane / call.lanes, groups = 32 / call.lanes;
    const bool inside = chunk < call.chunks;
    const uint4 none = {0, 0, 0, 0};
    const long long mine = static_cast<long long>(place) * call.chunks + chunk;
    const uint4 query = inside ? call.query[mine] : none;
    float most = -INFINITY, sum = 0, output[8] = {};
#pragma unroll 1
    for (int base = first; base < end; base += groups) {
        const bool there = base + group < end;
        const long long from = (static_cast<long long>(base + group) * call.heads + head) * call.chunks + chunk;
        const uint4 key = inside && there ? call.key[from] : none, value = inside && there ? call.value[from] : none;
        const uint32_t *a = &query.x, *b = &key.x, *c = &value.x;
        float score = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) score += low_of(a[i]) * low_of(b[i]) + high_of(a[i]) * high_of(b[i]);
#pragma unroll 1
        for (int step = 1; step < call.lanes; step *= 2) score += __shfl_xor_sync(~0u, score, step);
        score = there ? score * call.scale_log2 : -INFINITY;
        const float now = fmaxf(most, score), against = now == -INFINITY ? 0 : now;
        const float factor = exp2f(most - against), weight = exp2f(score - against);
        most = now;
        sum = sum * factor + weight;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            output[2 * i] = output[2 * i] * factor + weight * low_of(c[i]);
            output[2 * i + 1] = output[2 * i + 1] * factor + weight * high_of(c[i]);
        }
    }
#pragma unroll 1
    for (int step = call.lanes; step < 32; step *= 2) {
        const float theirs = __shfl_xor_sync(~0u, most, step), now = fmaxf(most, theirs);
        const float against = now == -INFINITY ? 0 : now;
        const float factor = exp2f(most - against), their_factor = exp2f(theirs - against);
        most = now;
        sum = sum * factor + __shfl_xor_sync(~0u, sum, step) * their_factor;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            output[i] = output[i] * factor + __shfl_xor_sync(~0u, output[i], step) * their_factor;
    }
    if (group > 0 || !inside) return;
    const float share = sum > 0 ? 1 / sum : 0;  // a sequence without a key: zeros
    union {
        __nv_bfloat162 pairs[4];
        uint4 all;
    } rounded;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        rounded.pairs[i] = __floats2bfloat162_rn(output[2 * i] * share, output[2 * i + 1] * share);
    call.output[mine] = rounded.all;
}

}  // namespace

// Shapes as in the definition; head_dim a multiple of 8, at most 256; num_tokens times heads below 2^31. Results are
// right for any number of keys; the kernel is fast for few.
extern "C" int derby_few_keys_attention_run(const void* query, const void* key, const void* value,
                                            const int* cu_seqlens_q, const int* cu_seqlens_k, void* output,
                                            int num_tokens, int num_keys, int num_seqs, int heads, int head_dim,
                                            float sm_scale, cudaStream_t stream) {
    if (head_dim % 8 || head_dim > 256) return cudaErrorInvalidValue;
    Call call = {static_cast<const uint4*>(query), static_cast<const uint4*>(key), static_cast<const uint4*>(value),
                 cu_seqlens_q, cu_seqlens_k, static_cast<uint4*>(output), num_tokens, num_keys, num_seqs, heads,
                 head_dim / 8, 1, sm_scale * LOG2_E};
    while (call.lanes < call.chunks) call.lanes *= 2;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((num_tokens * heads + WARPS - 1) / WARPS);
    config.blockDim = dim3(32 * WARPS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, derby_few_keys_attention, call);
}
