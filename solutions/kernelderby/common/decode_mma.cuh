// What the decode kernels of attention share: tensor core products of m16n8k16 in bfloat16, clusters, copies, bits of
// softmax. All PTX stands here: tests put another file in its place and run the kernels on a CPU.
//
// Scores and outputs are computed transposed, since a group has few query heads: tokens (or dimensions) fill the 16 rows
// of a product and up to 8 query heads its 8 columns. A lane is called by quad = lane / 4 and corner = lane % 4.

#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

constexpr float LOG2E = 1.4426950408889634f;

// accumulator += a b. a: 16 x 16, rows quad and quad + 8, columns 2 corner (+1) and 8 more; b: 16 x 8, rows as those
// columns, column quad; accumulator: rows quad (x, y) and quad + 8 (z, w), columns 2 corner and 1 more.
__device__ __forceinline__ void multiply(float4& accumulator, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(accumulator.x), "+f"(accumulator.y), "+f"(accumulator.z), "+f"(accumulator.w)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two bfloat16 in a word, `low` in its lower half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// An 8 x 8 matrix of 16-bit values turned over: row quad, columns 2 corner and 1 more, before and after. All lanes take
// part: volatile, or the compiler moves it behind a branch that only some of them take.
__device__ __forceinline__ uint32_t turned(uint32_t word) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}

__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Over the lanes of one corner, that is over the rows of an accumulator.
__device__ __forceinline__ float most_of_rows(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float sum_of_rows(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The factor of a part whose greatest score is `part` where the greatest of all is `whole` (-inf: no token, factor 0).
__device__ __forceinline__ float share(float part, float whole) {
  return part == -INFINITY ? 0.f : power_of_two(part - whole);
}

__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

// An address in this block's shared memory as 32 bits, and the same place in block `rank` of the cluster.
__device__ __forceinline__ uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

// Barriers that count bytes. One thread sets them up and says how many bytes will come; whoever reads waits.
__device__ __forceinline__ void set_up(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void set_up_seen() {  // by the cluster and by bulk copies, after the next barrier
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier), "r"(phase) : "memory");
}

// Into a block of the cluster, counted by its barrier: neither fence nor cluster barrier is needed after it.
__device__ __forceinline__ void send(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(value.x), "f"(value.y), "r"(barrier)
               : "memory");
}

// Clusters. arrive at the start and wait before the first send: a neighbour must have set up its barrier.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_having_read() {  // what the others will now write over
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// 16 bytes that are read once.
__device__ __forceinline__ uint4 load(const void* place) {
  uint4 result;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "l"(place));
  return result;
}

// 16 bytes on their way from global to shared memory; zeros where not valid.
__device__ __forceinline__ void fetch(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_fetched() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Four 8 x 8 matrices whose rows the lanes point at, those of the first by lanes 0 to 7 and so on.
__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}
