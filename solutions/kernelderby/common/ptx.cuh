// Instructions of sm_90a that CUDA C++ has no function for, each wrapped once: barriers, clusters, loads and stores,
// the matrices of a warp, arithmetic. Beside it, tma.cuh (copies) and wgmma.cuh (products of a warpgroup).
//
// Shared memory is named by 32-bit addresses: shared_address, and cluster_address for another CTA of the cluster.
// A comment in angle brackets is the section of https://docs.nvidia.com/cuda/parallel-thread-execution/
// Constraints: sm_90a, PTX ISA 8.0 or later.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace derby {

// An address in this CTA's shared memory as 32 bits.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// mbarriers --------------------------------------- <#parallel-synchronization-and-communication-instructions-mbarrier>

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// After mbarrier_init and before the barrier of the cluster (__syncthreads where it has one CTA): TMA and the other
// CTAs then see the mbarriers.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits until the phase of this parity is over. A fresh barrier's first phase has parity 0; the one before it, of
// parity 1, counts as over.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nwait:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra wait;\ndone:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

// The same for what other CTAs of the cluster wrote with store_async.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nwait:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@!p bra wait;\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and this many bytes more that the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Bytes that this phase of the barrier waits for; an arrival of its own is still to come.
__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival of this thread once all its earlier cp_async have landed.
__device__ __forceinline__ void mbarrier_arrive_on_cp_async(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier at the same place in CTA `rank` of the cluster. No explicit scope: with .release.cluster it
// costs hundreds of cycles.
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(rank) : "memory");
}

// Barriers of warps, register shares, clusters ------------- <#parallel-synchronization-and-communication-instructions>

// Named barriers, numbers 0 to 15 (an int, or a kernel family's enum); 0 is __syncthreads's as well. threads: those
// that arrive and those that sync, a multiple of 32.
template <class Barrier>
__device__ __forceinline__ void named_barrier_sync(Barrier barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}

template <class Barrier>
__device__ __forceinline__ void named_barrier_arrive(Barrier barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}

// <#miscellaneous-instructions-setmaxnreg> All warps of a warpgroup.
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "what setmaxnreg takes");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "what setmaxnreg takes");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// <#parallel-synchronization-and-communication-instructions-elect-sync> True in one lane of a whole warp.
__device__ __forceinline__ bool elect_one() {
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

// <#parallel-synchronization-and-communication-instructions-barrier-cluster> What a CTA wrote before cluster_arrive is
// seen after cluster_wait; cluster_arrive_relaxed promises nothing of the kind.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// <#data-movement-and-conversion-instructions-mapa> The same place in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ void store_cluster(uint32_t cluster_address, uint32_t value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(cluster_address), "r"(value) : "memory");
}

// <#data-movement-and-conversion-instructions-st-async> Into a CTA of the cluster, counted by its mbarrier (both are
// cluster addresses): neither fence nor cluster barrier is needed after it.
__device__ __forceinline__ void store_async(uint32_t to, float4 value, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier) : "memory");
}
__device__ __forceinline__ void store_async(uint32_t to, float2 value, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(to), "f"(value.x), "f"(value.y), "r"(barrier) : "memory");
}

// <#parallel-synchronization-and-communication-instructions-griddepcontrol> Programmatic dependent launch.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Loads and stores ---------------------------------- <#data-movement-and-conversion-instructions-ld>, -st, -red

__device__ __forceinline__ int load_shared_i32(uint32_t from) {
    int x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ float load_shared_f32(uint32_t from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t to, int x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t x) { store_shared(to, int(x)); }
__device__ __forceinline__ void store_shared(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float2 x) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, int4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 x) {
    store_shared(to, make_int4(int(x.x), int(x.y), int(x.z), int(x.w)));
}

__device__ __forceinline__ int load_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Loads that keep their place in the code: the compiler may move __ldcg and its like to before a wait for the previous
// kernel.
__device__ __forceinline__ int load_now(const int* from) {
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
// 16 bytes that are read once.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

// Loads of memory that no thread writes while the kernel runs; they keep their place among volatile instructions: an
// index that addresses depend on; 8 bytes that are read once; 16 bytes that are read once, L2 fetching 256.
__device__ __forceinline__ int load_constant_index(const int* from) {
    int value;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
}
__device__ __forceinline__ uint2 load_constant8(const void* from) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}
__device__ __forceinline__ uint4 load_constant16(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// If `wanted`, increments the counter and sets `before` to its former value. It is an increment because the assembler
// would turn an addition into one for the whole warp, with shuffles that wait for the result at once.
__device__ __forceinline__ void take_ticket(int* counter, bool wanted, int& before) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p atom.global.inc.u32 %0, [%1], 0x7fffffff;\n}"
                 : "+r"(before) : "l"(counter), "r"(static_cast<int>(wanted)) : "memory");
}

__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Add 8 bf16 or 4 float32 values in device memory at a 16-byte aligned address.
__device__ __forceinline__ void reduce_add_bf16x8(void* to, const uint4& v) {
    asm volatile("red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void reduce_add_f32x4(float* to, const uint4& bits) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "f"(__uint_as_float(bits.x)), "f"(__uint_as_float(bits.y)), "f"(__uint_as_float(bits.z)),
                 "f"(__uint_as_float(bits.w)) : "memory");
}

// 8 x 8 matrices of 16 bits, products of a warp ----------------------------------- <#warp-level-matrix-instructions>

// Lane l names row l % 8 of matrix l / 8, and holds in each matrix the two values of row l / 4 at columns 2 (l % 4);
// transposed: those of column l / 4 at rows 2 (l % 4). x2 takes the rows from lanes 0 to 15.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&to)[2], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void stmatrix_x4(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void stmatrix_x2_transposed(uint32_t row, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b)
                 : "memory");
}

// One such matrix turned over in registers. All lanes take part: volatile, or the compiler moves it behind a branch
// that only some of them take.
__device__ __forceinline__ uint32_t movmatrix_transposed(uint32_t word) {
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
}

// d += a b in bf16 with fp32 sums, of a warp: d [16, 8], a [16, 16], b [16, 8]. Lane l, q = l / 4, c = 2 (l % 4): d:
// rows q (first two) and q + 8, columns c and c + 1. a0: row q, columns c and c + 1; a1: row q + 8; a2, a3: the same 8
// columns further. b0: rows c and c + 1, column q; b1: 8 rows further.
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Arithmetic ----------------------------------------------------------------- <#floating-point-instructions-ex2>, ...

// 2^x, 2 ulp, denormals to zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / x, 1 ulp, denormals to zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats to bf16, rounded to nearest even; `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// No instruction: makes the compiler have these values in registers here, so that it computes them neither later nor
// again.
template <class T>
__device__ __forceinline__ void keep(T*& address) {
    asm volatile("" : "+l"(address));
}
template <class A, class B>
__device__ __forceinline__ void keep(uint32_t& a, uint32_t& b, int& c, const A*& d, const B*& e) {
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+l"(d), "+l"(e));
}

}  // namespace derby
