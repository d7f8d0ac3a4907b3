// TMA, bulk copies and cp.async: memory that moves without registers. Each instruction of sm_90a wrapped once, beside
// ptx.cuh. Shared memory is named by 32-bit addresses (shared_address).
// A comment in angle brackets is the section of https://docs.nvidia.com/cuda/parallel-thread-execution/
// Constraints: 16-byte aligned addresses and sizes; the place of a box with the 128-byte swizzle is 1024-byte aligned.
#pragma once
#include "ptx.cuh"

namespace derby {

// TMA -------------------------------------------- <#data-movement-and-conversion-instructions-cp-async-bulk-tensor>

// A box of a tensor map of two to four dimensions into shared memory, counted by the mbarrier. Coordinates in elements,
// the innermost (contiguous) dimension first.
__device__ __forceinline__ void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// A cache policy, as createpolicy makes it of all lines, for bytes that are read once.
constexpr uint64_t EVICT_FIRST = 0x12F0000000000000;

__device__ __forceinline__ void tma_load_hint(uint32_t to, const void* map, uint32_t barrier, uint64_t policy, int x,
                                              int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%4, %5}], [%2], %3;"
        ::"r"(to), "l"(map), "r"(barrier), "l"(policy), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_load_hint(uint32_t to, const void* map, uint32_t barrier, uint64_t policy, int x,
                                              int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%4, %5, %6}], [%2], %3;"
        ::"r"(to), "l"(map), "r"(barrier), "l"(policy), "r"(x), "r"(y), "r"(z) : "memory");
}

// The same box into the CTAs of the cluster that `ctas` names by bits, at its place in each and counted by the mbarrier
// at its place in each.
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const void* map, uint32_t barrier, uint16_t ctas, int x,
                                                   int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5}], [%2], %3;"
        ::"r"(to), "l"(map), "r"(barrier), "h"(ctas), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const void* map, uint32_t barrier, uint16_t ctas, int x,
                                                   int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5, %6}], [%2], %3;"
        ::"r"(to), "l"(map), "r"(barrier), "h"(ctas), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void tma_load_multicast_hint(uint32_t to, const void* map, uint32_t barrier, uint16_t ctas,
                                                        uint64_t policy, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%5, %6}], [%2], %3, %4;"
        ::"r"(to), "l"(map), "r"(barrier), "h"(ctas), "l"(policy), "r"(x), "r"(y) : "memory");
}

// A box from shared memory, after fence_async_proxy and before bulk_commit_group. Elements outside the tensor are left
// out.
__device__ __forceinline__ void tma_store(const void* map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_store(const void* map, uint32_t from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Bulk copies without a map ---------------------------- <#data-movement-and-conversion-instructions-cp-async-bulk>

__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_reduce_add_bf16(void* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
                 ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups still read shared memory, or (bulk_wait_group) are still under way.
template <int PENDING = 0>
__device__ __forceinline__ void bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING = 0>
__device__ __forceinline__ void bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// <#parallel-synchronization-and-communication-instructions-membar> What this thread wrote to shared memory is seen by
// TMA and wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies of single vectors ---------------------------------- <#data-movement-and-conversion-instructions-cp-async>

__device__ __forceinline__ void cp_async16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// 16 bytes, of which `bytes` (0 or 16) are read and the others zeros.
__device__ __forceinline__ void cp_async16(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async16(uint32_t to, const void* from, int bytes, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 ::"r"(to), "l"(from), "r"(bytes), "l"(policy) : "memory");
}
__device__ __forceinline__ void cp_async8(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// <#data-movement-and-conversion-instructions-createpolicy> L2 keeps these lines when it has to drop some.
__device__ __forceinline__ uint64_t keep_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

}  // namespace derby
