// Hopper instructions as functions: mbarriers, cp.async, TMA, named barriers, wgmma's fences (PTX ISA 8.x, sm_90a).
#pragma once
#include <cstdint>

namespace derby {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nwait:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra wait;\ndone:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Bytes that this phase of the barrier waits for; an arrival of its own is still to come.
__device__ __forceinline__ void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival of this thread once all its earlier cp_async16/cp_async4 have landed.
__device__ __forceinline__ void mbarrier_arrive_on_cp_async(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// 16 bytes, of which `bytes` (0 or 16) are read and the others zeros.
__device__ __forceinline__ void cp_async16(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The same under a cache policy.
__device__ __forceinline__ void cp_async16(uint32_t to, const void* from, int bytes, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 ::"r"(to), "l"(from), "r"(bytes), "l"(policy) : "memory");
}

// The compiler takes these values as they are here. With eleven copies and few registers it would work them out anew
// for each, in 67 of the loop's 166 instructions.
__device__ __forceinline__ void keep_as_they_are(uint32_t& a, uint32_t& b, int& c, const uint4*& d, const float*& e) {
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+l"(d), "+l"(e));
}

// L2 keeps these lines when it has to drop some.
__device__ __forceinline__ uint64_t keep_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void cp_async4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async8(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A TMA box of a tensor map's matrix into shared memory, counted by the mbarrier.
__device__ __forceinline__ void tma_load_box(uint32_t to, const void* map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// What createpolicy makes of L2::evict_first, for what is read once.
constexpr uint64_t EVICT_FIRST = 0x12F0000000000000;

__device__ __forceinline__ void tma_load_box_once(uint32_t to, const void* map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(EVICT_FIRST) : "memory");
}

// The same box into this and the other CTA of a cluster of two, counted by the mbarrier at the same place in each.
__device__ __forceinline__ void tma_load_box_multicast(uint32_t to, const void* map, int column, int row,
                                                       uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(uint16_t(3)) : "memory");
}

__device__ __forceinline__ void tma_load_box_multicast_once(uint32_t to, const void* map, int column, int row,
                                                            uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;"
        ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(uint16_t(3)), "l"(EVICT_FIRST) : "memory");
}

// Arrives at the mbarrier at the same place in CTA `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_remote(uint32_t barrier, int rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(rank) : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void bulk_store(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_reduce_add_bf16(void* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
                 ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// Four 8 x 8 matrices of 16 bits: lane l names row l % 8 of matrix l / 8, and holds in each the two values of row l / 4
// at columns 2 (l % 4).
__device__ __forceinline__ void stmatrix_x4(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// The same with each matrix transposed: the values that a lane holds go to rows 2 (l % 4) and the next, column l / 4.
__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void stmatrix_x2_transposed(uint32_t row, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from)
                 : "memory");
    return v;
}

// Adds 8 bf16 values in device memory at a 16-byte aligned address.
__device__ __forceinline__ void reduce_add_bf16x8(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// Adds 4 float32 values in device memory at a 16-byte aligned address.
__device__ __forceinline__ void reduce_add_f32x4(float* to, float a, float b, float c, float d) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

__device__ __forceinline__ void bulk_reduce_add_f32(void* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* from) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Loads that stay where they are: the compiler may move __ldcg and its like before a wait for the previous kernel.
__device__ __forceinline__ int load_now(const int* from) {
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// A CTA's 16 hardware barriers, by what their threads wait for. Hardware barrier 0 is __syncthreads's as well, which
// the GEMMs do not call.
enum class NamedBarrier : int {
    SHARE_READY = 0,       // all threads: row starts and this CTA's share of the work are in shared memory
    CONSUMERS_DONE = 1,    // both consumer warpgroups: a step of a tile's end is done
    WARPGROUP_DONE = 6,    // one consumer warpgroup, number 6 + its index: its pairs are there, or no longer needed
};

__device__ __forceinline__ constexpr NamedBarrier operator+(NamedBarrier barrier, int index) {
    return static_cast<NamedBarrier>(static_cast<int>(barrier) + index);
}

__device__ __forceinline__ void named_barrier_sync(NamedBarrier barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(NamedBarrier barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}

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

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// wgmma's shared memory descriptor of a K-major operand in rows of 128 bytes with the 128-byte swizzle; 1024-byte
// aligned. Its lower half: the address in units of 16 bytes, so that the next operand is a sum away.
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address) { return ((address & 0x3FFFF) >> 4) | (1u << 16); }

__device__ __forceinline__ uint64_t descriptor_of(uint32_t low) {
    return uint64_t(low) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 62);
}

}  // namespace derby
