// wgmma, the product of a warpgroup: bf16 and e4m3 with fp32 sums, N from 8 to 256 in steps of 8, its descriptors.
// <https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions>
//
//     wgmma_fence();
//     for (int k = 0; k < 4; ++k)  // a block of 64 bf16 values along k, both operands K-major
//         wgmma_bf16<N>(d, descriptor_of(a + 2 * k), descriptor_of(b + 2 * k), k > 0);  // 32 bytes are 2 units of 16
//     wgmma_commit_group();
//     wgmma_wait_group<0>();
//
// Thread t of the warpgroup holds, for every 8 columns j, d[4j .. 4j+3]: rows 16 (t / 32) + t % 32 / 4 (+ 8 for the
// last two), columns 8j + 2 (t % 4) + {0, 1}.
// Constraints: sm_90a; all four warps take part; d must not be touched between the product and the wait for it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace derby {

// Before the first product, and after registers of d or a were written. Not for operands in shared memory: data that
// threads wrote there needs fence_async_proxy.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The compiler moves nothing that reads or writes d past this point; the wait for wgmma itself names no registers.
template <int COUNT>
__device__ __forceinline__ void pin(float* d) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptors --------------------------------------------- <#asynchronous-warpgroup-level-matrix-shared-memory-layout>

// An operand in shared memory lies as TMA writes a box with this swizzle: rows of swizzle_bytes(), eight to an atom that
// is aligned to its size. The values are bits 62 and 63 of the descriptor.
enum class Swizzle : int { B128 = 1, B64 = 2, B32 = 3 };
__host__ __device__ constexpr int swizzle_bytes(Swizzle swizzle) { return 256 >> static_cast<int>(swizzle); }

// Lower half: the address in units of 16 bytes, so that the next operand is a sum away.
// K-major (rows lie along k): a product takes 32 bytes of each row, so the next one's descriptor is 2 more; `leading`
// is not read.
// MN-major (rows lie along m or n; bf16 only): a product takes 16 rows, two atoms, so the next one's descriptor is two
// atoms more (B128: 2048 / 16). `leading`: bytes from one row length of m or n (B128: 64 values) to the next.
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address, uint32_t leading = 16) {
    return ((address & 0x3FFFF) >> 4) | (leading >> 4 << 16);
}

// stride: bytes from eight rows to the next eight; those of an atom where they lie close.
template <Swizzle SWIZZLE = Swizzle::B128>
__device__ __forceinline__ uint64_t descriptor_of(uint32_t low, uint32_t stride = 8 * swizzle_bytes(SWIZZLE)) {
    return uint64_t(low) | (uint64_t(stride >> 4) << 32) | (uint64_t(static_cast<int>(SWIZZLE)) << 62);
}

// Both halves at once, where each address is worked out anew.
template <Swizzle SWIZZLE = Swizzle::B128>
__device__ __forceinline__ uint64_t descriptor_at(uint32_t address, int leading = 16) {
    return static_cast<uint64_t>((address >> 4) & 0x3FFF) | (static_cast<uint64_t>(leading >> 4) << 16) |
           (static_cast<uint64_t>(8 * swizzle_bytes(SWIZZLE) >> 4) << 32) |
           (static_cast<uint64_t>(static_cast<int>(SWIZZLE)) << 62);
}

// Products ---------------------------------------------- <#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma>

enum class Major : int { K = 0, MN = 1 };

template <int N>
struct WgmmaForm {
    static_assert(N % 8 == 0 && 8 <= N && N <= 256, "wgmma takes N of 8 to 256 in steps of 8");
};

// d [64, N] (+)= a [64, 16] b [16, N] in bf16, both in shared memory; adds to d where `add`.
template <int N, Major A = Major::K, Major B = Major::K>
__device__ __forceinline__ void wgmma_bf16(float* d, uint64_t a, uint64_t b, int add) {
    WgmmaForm<N>::template bf16<static_cast<int>(A), static_cast<int>(B)>(d, a, b, add);
}

// The same with a in registers: a[0] row r, a[1] row r + 8, a[2] and a[3] the same 8 columns further, as the columns of
// d.
template <int N, Major B = Major::K>
__device__ __forceinline__ void wgmma_bf16_rs(float* d, const uint32_t* a, uint64_t b, int add) {
    WgmmaForm<N>::template bf16_rs<static_cast<int>(B)>(d, a, b, add);
}

// d [64, N] (+)= a [64, 32] b [32, N] in e4m3, both K-major.
template <int N>
__device__ __forceinline__ void wgmma_e4m3(float* d, uint64_t a, uint64_t b, int add) {
    WgmmaForm<N>::e4m3(d, a, b, add);
}

// The same with a in registers: a[0] row r, columns 4 (t % 4) to + 3, a[1] row r + 8, a[2] and a[3] 16 columns further.
template <int N>
__device__ __forceinline__ void wgmma_e4m3_rs(float* d, const uint32_t* a, uint64_t b, int add) {
    WgmmaForm<N>::e4m3_rs(d, a, b, add);
}

// How they are made: DERBY_D<N>(F, M) is F(0) M(1) ... M(N / 2 - 1), used once for the text of the registers and once
// for the operands. Inline assembly takes no parameter pack, so the preprocessor makes the index sequence.
#define DERBY_TEXT_FIRST(i) "%" #i
#define DERBY_TEXT(i) ", %" #i
#define DERBY_REGISTER_FIRST(i) "+f"(d[i])
#define DERBY_REGISTER(i) , "+f"(d[i])
#define DERBY_D8(F, M) F(0) M(1) M(2) M(3)
#define DERBY_D16(F, M) DERBY_D8(F, M) M(4) M(5) M(6) M(7)
#define DERBY_D24(F, M) DERBY_D16(F, M) M(8) M(9) M(10) M(11)
#define DERBY_D32(F, M) DERBY_D24(F, M) M(12) M(13) M(14) M(15)
#define DERBY_D40(F, M) DERBY_D32(F, M) M(16) M(17) M(18) M(19)
#define DERBY_D48(F, M) DERBY_D40(F, M) M(20) M(21) M(22) M(23)
#define DERBY_D56(F, M) DERBY_D48(F, M) M(24) M(25) M(26) M(27)
#define DERBY_D64(F, M) DERBY_D56(F, M) M(28) M(29) M(30) M(31)
#define DERBY_D72(F, M) DERBY_D64(F, M) M(32) M(33) M(34) M(35)
#define DERBY_D80(F, M) DERBY_D72(F, M) M(36) M(37) M(38) M(39)
#define DERBY_D88(F, M) DERBY_D80(F, M) M(40) M(41) M(42) M(43)
#define DERBY_D96(F, M) DERBY_D88(F, M) M(44) M(45) M(46) M(47)
#define DERBY_D104(F, M) DERBY_D96(F, M) M(48) M(49) M(50) M(51)
#define DERBY_D112(F, M) DERBY_D104(F, M) M(52) M(53) M(54) M(55)
#define DERBY_D120(F, M) DERBY_D112(F, M) M(56) M(57) M(58) M(59)
#define DERBY_D128(F, M) DERBY_D120(F, M) M(60) M(61) M(62) M(63)
#define DERBY_D136(F, M) DERBY_D128(F, M) M(64) M(65) M(66) M(67)
#define DERBY_D144(F, M) DERBY_D136(F, M) M(68) M(69) M(70) M(71)
#define DERBY_D152(F, M) DERBY_D144(F, M) M(72) M(73) M(74) M(75)
#define DERBY_D160(F, M) DERBY_D152(F, M) M(76) M(77) M(78) M(79)
#define DERBY_D168(F, M) DERBY_D160(F, M) M(80) M(81) M(82) M(83)
#define DERBY_D176(F, M) DERBY_D168(F, M) M(84) M(85) M(86) M(87)
#define DERBY_D184(F, M) DERBY_D176(F, M) M(88) M(89) M(90) M(91)
#define DERBY_D192(F, M) DERBY_D184(F, M) M(92) M(93) M(94) M(95)
#define DERBY_D200(F, M) DERBY_D192(F, M) M(96) M(97) M(98) M(99)
#define DERBY_D208(F, M) DERBY_D200(F, M) M(100) M(101) M(102) M(103)
#define DERBY_D216(F, M) DERBY_D208(F, M) M(104) M(105) M(106) M(107)
#define DERBY_D224(F, M) DERBY_D216(F, M) M(108) M(109) M(110) M(111)
#define DERBY_D232(F, M) DERBY_D224(F, M) M(112) M(113) M(114) M(115)
#define DERBY_D240(F, M) DERBY_D232(F, M) M(116) M(117) M(118) M(119)
#define DERBY_D248(F, M) DERBY_D240(F, M) M(120) M(121) M(122) M(123)
#define DERBY_D256(F, M) DERBY_D248(F, M) M(124) M(125) M(126) M(127)

#define DERBY_WGMMA(N, KIND, A, FLAGS, ADD, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N KIND " {" DERBY_D##N(DERBY_TEXT_FIRST, DERBY_TEXT) "}, " A \
                 ", p, 1, 1" FLAGS ";\n}\n" \
                 : DERBY_D##N(DERBY_REGISTER_FIRST, DERBY_REGISTER) : __VA_ARGS__)

// P0 to P6: the operands behind the N / 2 registers of d.
#define DERBY_WGMMA_FORM(N, P0, P1, P2, P3, P4, P5, P6) \
    template <> \
    struct WgmmaForm<N> { \
        template <int A_MAJOR, int B_MAJOR> \
        static __device__ __forceinline__ void bf16(float* d, uint64_t a, uint64_t b, int add) { \
            DERBY_WGMMA(N, "k16.f32.bf16.bf16", P0 ", " P1, ", " P3 ", " P4, P2, "l"(a), "l"(b), "r"(add), \
                        "n"(A_MAJOR), "n"(B_MAJOR)); \
        } \
        template <int B_MAJOR> \
        static __device__ __forceinline__ void bf16_rs(float* d, const uint32_t* a, uint64_t b, int add) { \
            DERBY_WGMMA(N, "k16.f32.bf16.bf16", "{" P0 ", " P1 ", " P2 ", " P3 "}, " P4, ", " P6, P5, "r"(a[0]), \
                        "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_MAJOR)); \
        } \
        static __device__ __forceinline__ void e4m3(float* d, uint64_t a, uint64_t b, int add) { \
            DERBY_WGMMA(N, "k32.f32.e4m3.e4m3", P0 ", " P1, "", P2, "l"(a), "l"(b), "r"(add)); \
        } \
        static __device__ __forceinline__ void e4m3_rs(float* d, const uint32_t* a, uint64_t b, int add) { \
            DERBY_WGMMA(N, "k32.f32.e4m3.e4m3", "{" P0 ", " P1 ", " P2 ", " P3 "}, " P4, "", P5, "r"(a[0]), "r"(a[1]), \
                        "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
        } \
    };
DERBY_WGMMA_FORM(8, "%4", "%5", "%6", "%7", "%8", "%9", "%10")
DERBY_WGMMA_FORM(16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
DERBY_WGMMA_FORM(24, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
DERBY_WGMMA_FORM(32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
DERBY_WGMMA_FORM(40, "%20", "%21", "%22", "%23", "%24", "%25", "%26")
DERBY_WGMMA_FORM(48, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
DERBY_WGMMA_FORM(56, "%28", "%29", "%30", "%31", "%32", "%33", "%34")
DERBY_WGMMA_FORM(64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
DERBY_WGMMA_FORM(72, "%36", "%37", "%38", "%39", "%40", "%41", "%42")
DERBY_WGMMA_FORM(80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
DERBY_WGMMA_FORM(88, "%44", "%45", "%46", "%47", "%48", "%49", "%50")
DERBY_WGMMA_FORM(96, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
DERBY_WGMMA_FORM(104, "%52", "%53", "%54", "%55", "%56", "%57", "%58")
DERBY_WGMMA_FORM(112, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
DERBY_WGMMA_FORM(120, "%60", "%61", "%62", "%63", "%64", "%65", "%66")
DERBY_WGMMA_FORM(128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
DERBY_WGMMA_FORM(136, "%68", "%69", "%70", "%71", "%72", "%73", "%74")
DERBY_WGMMA_FORM(144, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
DERBY_WGMMA_FORM(152, "%76", "%77", "%78", "%79", "%80", "%81", "%82")
DERBY_WGMMA_FORM(160, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
DERBY_WGMMA_FORM(168, "%84", "%85", "%86", "%87", "%88", "%89", "%90")
DERBY_WGMMA_FORM(176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
DERBY_WGMMA_FORM(184, "%92", "%93", "%94", "%95", "%96", "%97", "%98")
DERBY_WGMMA_FORM(192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
DERBY_WGMMA_FORM(200, "%100", "%101", "%102", "%103", "%104", "%105", "%106")
DERBY_WGMMA_FORM(208, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
DERBY_WGMMA_FORM(216, "%108", "%109", "%110", "%111", "%112", "%113", "%114")
DERBY_WGMMA_FORM(224, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
DERBY_WGMMA_FORM(232, "%116", "%117", "%118", "%119", "%120", "%121", "%122")
DERBY_WGMMA_FORM(240, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
DERBY_WGMMA_FORM(248, "%124", "%125", "%126", "%127", "%128", "%129", "%130")
DERBY_WGMMA_FORM(256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#undef DERBY_WGMMA_FORM
#undef DERBY_WGMMA

}  // namespace derby
