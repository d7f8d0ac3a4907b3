// What benchmarks/ceilings.py measures: reads, fills, copies and loops of wgmma on sm_90a, each in several ways, plus
// two kernels that do next to nothing. Every figure is of work that was done: reads are summed (modulo 2^32, into SINKS
// words), the rest is stored, and ceilings.py compares both with torch. Every wait on an mbarrier ends in a trap after
// two seconds. Host functions return a CUDA error number; -1: a tensor map could not be encoded; -2: no such way.
#include <cstdint>
#include <cuda.h>
#include <cuda_runtime.h>

namespace {

constexpr int SINKS = 4096;
constexpr int LINEAR_THREADS = 512;
constexpr uint32_t STEP = 0x9E3779B1u;  // word i of a fill is STEP * i + seed

// mbarriers and TMA ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    uint64_t begin = 0;
    while (true) {
        uint32_t done;
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
        if (done) return;
        if (begin == 0) begin = nanoseconds();
        if (nanoseconds() - begin > 2000000000ull) __trap();
    }
}

__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void tma_load_box(void* to, const CUtensorMap* map, int column, int row,
                                             uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void bulk_store(void* to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;"
                 ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

template <int PENDING>
__device__ __forceinline__ void bulk_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void bulk_stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Linear --------------------------------------------------------------------------------------------------------------

// 16 bytes that are read once. PREFETCH: asks L2 for 256 bytes around them.
template <bool PREFETCH>
__device__ __forceinline__ uint4 load(const uint4* from) {
    uint4 v;
    if (PREFETCH)
        asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    else
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

template <bool STREAM>
__device__ __forceinline__ void store(uint4* to, uint4 v) {
    if (STREAM)
        __stcs(to, v);
    else
        *to = v;
}

__device__ __forceinline__ void add_to_sink(uint32_t sum, uint32_t* sink) {
    sum = __reduce_add_sync(~0u, sum);
    const uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) atomicAdd(sink + warp % SINKS, sum);
}

// A CTA takes tiles of UNROLL x 512 x 16 bytes in turn, each thread UNROLL loads at once.
template <int UNROLL, bool PREFETCH>
__global__ void __launch_bounds__(LINEAR_THREADS) read_linear(const uint4* from, uint64_t tiles, uint32_t* sink) {
    uint32_t sum = 0;
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint4* at = from + tile * (UNROLL * LINEAR_THREADS) + threadIdx.x;
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = load<PREFETCH>(at + i * LINEAR_THREADS);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    add_to_sink(sum, sink);
}

template <int UNROLL, bool STREAM>
__global__ void __launch_bounds__(LINEAR_THREADS) fill_linear(uint4* to, uint64_t tiles, uint32_t seed) {
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint64_t first = tile * (UNROLL * LINEAR_THREADS) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const uint64_t at = first + i * LINEAR_THREADS;
            const uint32_t word = uint32_t(at) * 4 * STEP + seed;
            store<STREAM>(to + at, make_uint4(word, word + STEP, word + 2 * STEP, word + 3 * STEP));
        }
    }
}

template <int UNROLL, bool STREAM>
__global__ void __launch_bounds__(LINEAR_THREADS) copy_linear(const uint4* from, uint4* to, uint64_t tiles) {
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint64_t first = tile * (UNROLL * LINEAR_THREADS) + threadIdx.x;
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) v[i] = load<false>(from + first + i * LINEAR_THREADS);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) store<STREAM>(to + first + i * LINEAR_THREADS, v[i]);
    }
}

// Two reads and a write: the sums, word by word.
template <int UNROLL, bool STREAM>
__global__ void __launch_bounds__(LINEAR_THREADS)
add_linear(const uint4* one, const uint4* other, uint4* to, uint64_t tiles) {
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint64_t first = tile * (UNROLL * LINEAR_THREADS) + threadIdx.x;
        uint4 a[UNROLL], b[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            a[i] = load<false>(one + first + i * LINEAR_THREADS);
            b[i] = load<false>(other + first + i * LINEAR_THREADS);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i)
            store<STREAM>(to + first + i * LINEAR_THREADS,
                          make_uint4(a[i].x + b[i].x, a[i].y + b[i].y, a[i].z + b[i].z, a[i].w + b[i].w));
    }
}

// By TMA --------------------------------------------------------------------------------------------------------------

constexpr int BOX = 128;               // rows of a box, and bytes of a row
constexpr int BOX_BYTES = BOX * BOX;   // also of a plain bulk copy
constexpr int MATRIX_COLUMNS = 8192;   // bytes a row of the matrix whose boxes are read
constexpr int BOXES_A_ROW = MATRIX_COLUMNS / BOX;
constexpr int STAGES = 12;
constexpr int CONSUMERS = 256;

struct alignas(1024) Ring {
    uint8_t stage[STAGES][BOX_BYTES];
    uint64_t full[STAGES], empty[STAGES];
};
static_assert(sizeof(Ring) <= 227 * 1024, "shared memory of a CTA");

// Box number `box` of a CTA: one run of boxes a CTA, or all CTAs in turn.
__device__ __forceinline__ uint64_t box_at(uint64_t box, uint64_t boxes, bool runs) {
    return runs ? blockIdx.x * boxes / gridDim.x + box : blockIdx.x + box * gridDim.x;
}

__device__ __forceinline__ uint64_t boxes_of_cta(uint64_t boxes, bool runs) {
    return runs ? (blockIdx.x + 1) * boxes / gridDim.x - blockIdx.x * boxes / gridDim.x
                : (boxes - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

// One thread brings boxes (TILED: of a tensor map, 128 x 128 bytes, along a row first; else 16 KB on end) into a ring
// of stages, two warpgroups add them up.
template <bool TILED>
__global__ void __launch_bounds__(CONSUMERS + 32)
read_tma(const __grid_constant__ CUtensorMap map, const uint8_t* from, uint64_t boxes, bool runs, uint32_t* sink) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Ring& ring = *reinterpret_cast<Ring*>(raw);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(&ring.full[s], 1);
            mbarrier_init(&ring.empty[s], CONSUMERS / 32);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    const uint64_t mine = boxes_of_cta(boxes, runs);
    int s = 0;
    uint32_t parity = 0;
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x > CONSUMERS) return;
        for (uint64_t i = 0; i < mine; ++i) {
            const uint64_t box = box_at(i, boxes, runs);
            mbarrier_wait(&ring.empty[s], parity ^ 1);
            mbarrier_arrive_expect_tx(&ring.full[s], BOX_BYTES);
            if (TILED)
                tma_load_box(ring.stage[s], &map, int(box % BOXES_A_ROW) * BOX, int(box / BOXES_A_ROW) * BOX,
                             &ring.full[s]);
            else
                bulk_load(ring.stage[s], from + box * BOX_BYTES, BOX_BYTES, &ring.full[s]);
            if (++s == STAGES) s = 0, parity ^= 1;
        }
        return;
    }
    uint32_t sum = 0;
    for (uint64_t i = 0; i < mine; ++i) {
        mbarrier_wait(&ring.full[s], parity);
        const uint4* stage = reinterpret_cast<const uint4*>(ring.stage[s]) + threadIdx.x;
#pragma unroll
        for (int j = 0; j < BOX_BYTES / 16 / CONSUMERS; ++j) {
            const uint4 v = stage[j * CONSUMERS];
            sum += v.x + v.y + v.z + v.w;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&ring.empty[s]);
        if (++s == STAGES) s = 0, parity ^= 1;
    }
    add_to_sink(sum, sink);
}

// One thread a CTA: 16 KB into a stage, and out of it again once they are there. Half of the stages load, half store.
__global__ void __launch_bounds__(32) copy_tma(const uint8_t* from, uint8_t* to, uint64_t boxes, bool runs) {
    constexpr int AHEAD = STAGES / 2;
    extern __shared__ __align__(1024) uint8_t raw[];
    Ring& ring = *reinterpret_cast<Ring*>(raw);
    if (threadIdx.x != 0) return;
    for (int s = 0; s < STAGES; ++s) mbarrier_init(&ring.full[s], 1);
    fence_mbarrier_init();
    const uint64_t mine = boxes_of_cta(boxes, runs);
    int s = 0, stored = 0;
    uint32_t parity = 0;
    for (uint64_t i = 0; i < mine + AHEAD; ++i) {
        if (i < mine) {
            // Stores 0 .. i - AHEAD - 1 are committed; of stage s the last was number i - STAGES.
            if (i >= STAGES) bulk_stores_have_read<STAGES - AHEAD - 1>();
            mbarrier_arrive_expect_tx(&ring.full[s], BOX_BYTES);
            bulk_load(ring.stage[s], from + box_at(i, boxes, runs) * BOX_BYTES, BOX_BYTES, &ring.full[s]);
            if (++s == STAGES) s = 0;
        }
        if (i >= AHEAD) {
            mbarrier_wait(&ring.full[stored], parity);
            bulk_store(to + box_at(i - AHEAD, boxes, runs) * BOX_BYTES, ring.stage[stored], BOX_BYTES);
            if (++stored == STAGES) stored = 0, parity ^= 1;
        }
    }
    bulk_stores_are_done();
}

// Every 16 KB get the same words: STEP * i + seed, i from 0.
__global__ void __launch_bounds__(128) fill_tma(uint8_t* to, uint64_t boxes, bool runs, uint32_t seed) {
    __shared__ alignas(128) uint32_t words[BOX_BYTES / 4];
    for (uint32_t i = threadIdx.x; i < BOX_BYTES / 4; i += blockDim.x) words[i] = STEP * i + seed;
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    const uint64_t mine = boxes_of_cta(boxes, runs);
    for (uint64_t i = 0; i < mine; ++i) {
        bulk_store(to + box_at(i, boxes, runs) * BOX_BYTES, words, BOX_BYTES);
        bulk_stores_have_read<8>();
    }
    bulk_stores_are_done();
}

// wgmma ---------------------------------------------------------------------------------------------------------------

// d [64, 256] += a [64, 32 bytes of K] b [256, 32 bytes of K]^T; see the PTX ISA on wgmma for d's layout.
#define CEILINGS_WGMMA(instruction, immediates)                                                                       \
    asm volatile(                                                                                                     \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n" instruction " {"                                                   \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                            \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                            \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                            \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "           \
        "%128, %129, p, " immediates ";\n}\n"                                                                         \
        : CEILINGS_32(0), CEILINGS_32(32), CEILINGS_32(64), CEILINGS_32(96)                                           \
        : "l"(a), "l"(b))
#define CEILINGS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define CEILINGS_16(i) CEILINGS_4(i), CEILINGS_4((i) + 4), CEILINGS_4((i) + 8), CEILINGS_4((i) + 12)
#define CEILINGS_32(i) CEILINGS_16(i), CEILINGS_16((i) + 16)

template <bool FP8>
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
    if constexpr (FP8)
        CEILINGS_WGMMA("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3", "1, 1");
    else
        CEILINGS_WGMMA("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "1, 1, 0, 0");
}

// Of a K-major operand in rows of 128 bytes with the 128-byte swizzle, 1024-byte aligned.
__device__ __forceinline__ uint64_t descriptor(const void* operand) {
    return uint64_t((shared_address(operand) & 0x3FFFF) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}

constexpr int K_BLOCKS = 4, K_BYTES = 128, M = 64, N = 256;  // resident: K_BLOCKS of K_BYTES

template <int WARPGROUPS>
struct alignas(1024) Operands {
    uint8_t a[WARPGROUPS][K_BLOCKS][M * K_BYTES];
    uint8_t b[K_BLOCKS][N * K_BYTES];
};

// Every warpgroup of every CTA: `passes` times the sum of its a's blocks [64, K] times b's blocks [256, K]^T, from
// tiles that stay in shared memory. a: [WARPGROUPS, K_BLOCKS, 64, 128 bytes], b: [K_BLOCKS, 256, 128 bytes] in device
// memory; out: [CTAs, WARPGROUPS, 64, 256] float32.
template <bool FP8, int WARPGROUPS>
__global__ void __launch_bounds__(WARPGROUPS * 128, 1)
multiply(const uint4* a, const uint4* b, int passes, float* out) {
    extern __shared__ __align__(1024) uint8_t raw[];
    using Tiles = Operands<WARPGROUPS>;
    static_assert(sizeof(Tiles) <= 227 * 1024, "shared memory of a CTA");
    Tiles& tiles = *reinterpret_cast<Tiles*>(raw);
    if (shared_address(raw) % 1024 != 0) __trap();  // the swizzle goes by address
    uint4* to_a = reinterpret_cast<uint4*>(tiles.a);
    uint4* to_b = reinterpret_cast<uint4*>(tiles.b);
    for (int i = threadIdx.x; i < int(sizeof(tiles.a)) / 16; i += blockDim.x) to_a[i ^ (i / 8 % 8)] = a[i];
    for (int i = threadIdx.x; i < int(sizeof(tiles.b)) / 16; i += blockDim.x) to_b[i ^ (i / 8 % 8)] = b[i];
    fence_async_proxy();
    __syncthreads();
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const uint64_t first_a = descriptor(tiles.a[warpgroup]), first_b = descriptor(tiles.b);
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int block = 0; block < K_BLOCKS; ++block)
#pragma unroll
            for (int k = 0; k < K_BYTES / 32; ++k)
                wgmma<FP8>(d, first_a + block * (M * K_BYTES >> 4) + 2 * k,
                           first_b + block * (N * K_BYTES >> 4) + 2 * k);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float* to = out + (size_t(blockIdx.x) * WARPGROUPS + warpgroup) * M * N;
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        *reinterpret_cast<float2*>(to + row * N + 8 * j + column) = make_float2(d[4 * j], d[4 * j + 1]);
        *reinterpret_cast<float2*>(to + (row + 8) * N + 8 * j + column) = make_float2(d[4 * j + 2], d[4 * j + 3]);
    }
}

// Next to nothing -----------------------------------------------------------------------------------------------------

__global__ void empty() {}

// Every thread loads 16 bytes and stores them.
__global__ void load_store(const uint4* from, uint4* to) { to[threadIdx.x] = from[threadIdx.x]; }

int launched() { return cudaGetLastError(); }

template <typename Kernel>
cudaError_t allow_shared(Kernel kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
}

bool encode(CUtensorMap* map, const void* from, uint64_t bytes) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return false;
    const cuuint64_t sizes[2] = {MATRIX_COLUMNS, bytes / MATRIX_COLUMNS}, strides[1] = {MATRIX_COLUMNS};
    const cuuint32_t box[2] = {BOX, BOX}, steps[2] = {1, 1};
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
               map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(from), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <bool FP8, int WARPGROUPS>
int start_multiply(int ctas, const void* a, const void* b, int passes, float* out, cudaStream_t stream) {
    const size_t bytes = sizeof(Operands<WARPGROUPS>);
    if (cudaError_t error = allow_shared(multiply<FP8, WARPGROUPS>, bytes); error != cudaSuccess) return error;
    multiply<FP8, WARPGROUPS><<<ctas, WARPGROUPS * 128, bytes, stream>>>(
        static_cast<const uint4*>(a), static_cast<const uint4*>(b), passes, out);
    return launched();
}

}  // namespace

// bytes: a multiple of 2^20. unroll: 4, 8 or 16, of add_linear 2, 4 or 8. ctas: of the grid.
#define CEILINGS_START(kernel, U, flag, ...)                                                                          \
    if (unroll == U) {                                                                                                \
        const uint64_t tiles = bytes / (16ull * LINEAR_THREADS * U);                                                  \
        if (flag)                                                                                                     \
            kernel<U, true><<<ctas, LINEAR_THREADS, 0, stream>>>(__VA_ARGS__);                                        \
        else                                                                                                          \
            kernel<U, false><<<ctas, LINEAR_THREADS, 0, stream>>>(__VA_ARGS__);                                       \
        return launched();                                                                                            \
    }

extern "C" int ceilings_read_linear(int unroll, int prefetch, int ctas, const uint4* from, uint64_t bytes,
                                    uint32_t* sink, cudaStream_t stream) {
    CEILINGS_START(read_linear, 4, prefetch, from, tiles, sink)
    CEILINGS_START(read_linear, 8, prefetch, from, tiles, sink)
    CEILINGS_START(read_linear, 16, prefetch, from, tiles, sink)
    return -2;
}

extern "C" int ceilings_fill_linear(int unroll, int streaming, int ctas, uint4* to, uint64_t bytes, uint32_t seed,
                                    cudaStream_t stream) {
    CEILINGS_START(fill_linear, 4, streaming, to, tiles, seed)
    CEILINGS_START(fill_linear, 8, streaming, to, tiles, seed)
    CEILINGS_START(fill_linear, 16, streaming, to, tiles, seed)
    return -2;
}

extern "C" int ceilings_copy_linear(int unroll, int streaming, int ctas, const uint4* from, uint4* to, uint64_t bytes,
                                    cudaStream_t stream) {
    CEILINGS_START(copy_linear, 4, streaming, from, to, tiles)
    CEILINGS_START(copy_linear, 8, streaming, from, to, tiles)
    CEILINGS_START(copy_linear, 16, streaming, from, to, tiles)
    return -2;
}

extern "C" int ceilings_add_linear(int unroll, int streaming, int ctas, const uint4* one, const uint4* other, uint4* to,
                                   uint64_t bytes, cudaStream_t stream) {
    CEILINGS_START(add_linear, 2, streaming, one, other, to, tiles)
    CEILINGS_START(add_linear, 4, streaming, one, other, to, tiles)
    CEILINGS_START(add_linear, 8, streaming, one, other, to, tiles)
    return -2;
}

// runs: every CTA reads (copies, fills) one run of memory, else all of them in turn.
extern "C" int ceilings_read_tma(int tiled, int runs, int ctas, const void* from, uint64_t bytes, uint32_t* sink,
                                 cudaStream_t stream) {
    CUtensorMap map = {};
    if (tiled && !encode(&map, from, bytes)) return -1;
    const auto kernel = tiled ? read_tma<true> : read_tma<false>;
    if (cudaError_t error = allow_shared(kernel, sizeof(Ring)); error != cudaSuccess) return error;
    kernel<<<ctas, CONSUMERS + 32, sizeof(Ring), stream>>>(map, static_cast<const uint8_t*>(from), bytes / BOX_BYTES,
                                                           runs != 0, sink);
    return launched();
}

extern "C" int ceilings_copy_tma(int runs, int ctas, const void* from, void* to, uint64_t bytes, cudaStream_t stream) {
    if (cudaError_t error = allow_shared(copy_tma, sizeof(Ring)); error != cudaSuccess) return error;
    copy_tma<<<ctas, 32, sizeof(Ring), stream>>>(static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to),
                                                 bytes / BOX_BYTES, runs != 0);
    return launched();
}

extern "C" int ceilings_fill_tma(int runs, int ctas, void* to, uint64_t bytes, uint32_t seed, cudaStream_t stream) {
    fill_tma<<<ctas, 128, 0, stream>>>(static_cast<uint8_t*>(to), bytes / BOX_BYTES, runs != 0, seed);
    return launched();
}

extern "C" int ceilings_memcpy(const void* from, void* to, uint64_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

extern "C" int ceilings_multiply(int fp8, int warpgroups, int ctas, const void* a, const void* b, int passes,
                                 float* out, cudaStream_t stream) {
    if (warpgroups == 2)
        return fp8 ? start_multiply<true, 2>(ctas, a, b, passes, out, stream)
                   : start_multiply<false, 2>(ctas, a, b, passes, out, stream);
    if (warpgroups == 3)
        return fp8 ? start_multiply<true, 3>(ctas, a, b, passes, out, stream)
                   : start_multiply<false, 3>(ctas, a, b, passes, out, stream);
    return -2;
}

extern "C" int ceilings_empty(cudaStream_t stream) {
    empty<<<1, 32, 0, stream>>>();
    return launched();
}

extern "C" int ceilings_load_store(const void* from, void* to, cudaStream_t stream) {
    load_store<<<1, 128, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to));
    return launched();
}
