// Stores a tile's output through the ring's next stages. Once all consumers are done with what these held, the producer
// passes them on empty, or filled with boxes of the multiplier; meanwhile it loads the next tile into the other stages.
// The output is stored by TMA or, if 8 does not divide its columns (extent.by_hand), by ordinary stores.
#pragma once
#include "dense_parts.cuh"

namespace derby {

// Hardware barriers, by what their threads wait for; 0 is __syncthreads's.
enum DenseBarrier { BOX_THERE = 1 };  // one warpgroup, number 1 + its index: its boxes are written, or have left

// Where box `number` of the output lies, in the stages from `first` on.
template <class F>
__device__ __forceinline__ uint32_t box_place(const Shared<F>& shared, uint32_t first, int number) {
    const int slot = number / F::IN_STAGE;
    uint32_t stage = first + slot;
    if (stage >= F::STAGES) stage -= F::STAGES;
    return shared.a(stage) + (number - slot * F::IN_STAGE) * F::BOX;
}

// First column of box `across` of a row, counted from the tile's first column. If 64 does not divide the columns, the
// last box begins earlier and overlaps the one before it; both write the same there.
template <class F>
__device__ __forceinline__ constexpr int across_of(int across) {
    return across * 64 < F::COLUMNS - 64 ? across * 64 : F::COLUMNS - 64;
}

// The producer's side.
template <class E, class F>
__device__ __forceinline__ void pass_stages(Shared<F>& shared, PipelineState<F::STAGES> at, const CUtensorMap* multiplier,
                                            int2 tile, bool by_hand) {
    for (int slot = 0; slot < F::ENDS; ++slot, at.next()) {
        if (!E::MULTIPLIES || by_hand) {
            shared.ring.wait_empty(at);
            shared.ring.commit(at);
        } else {
            const int from = slot * F::IN_STAGE, to = min(from + F::IN_STAGE, F::BOXES);
            const uint32_t barrier = shared.ring.acquire(at, (to - from) * F::BOX);
            for (int number = from; number < to; ++number) {
                const uint32_t place = shared.a(at.stage) + (number - from) * F::BOX;
                if constexpr (F::TURNED) {
                    const int half = number / F::GROUPS, group = number % F::GROUPS;
                    tma_load(place, multiplier, barrier, tile.x + (group * F::HALVES + half) * 64, tile.y);
                } else {
                    constexpr int WARPS = F::CONSUMERS / WARP;
                    const int part = number / WARPS, warp = number % WARPS, half = part / F::ACROSS;
                    const int row = tile.x + (warp / 4 * F::HALVES + half) * 64 + warp % 4 * 16;
                    for (int some = 0; some < 16; some += F::OUT_ROWS)
                        tma_load(place + some * ROW_BYTES, multiplier, barrier,
                                 tile.y + across_of<F>(part % F::ACROSS), row + some);
                }
            }
        }
    }
}

// Stores two blocks of a warp's sums (d), each 16 rows x 8 columns, with the addends of their rows or columns, at the
// address that this lane gives. If a multiplier lies there, it is read from the same address first.
template <class E, bool TURNED>
__device__ __forceinline__ void store_blocks(uint32_t place, const float* d, const float4& add) {
    uint32_t by[4] = {};
    if constexpr (E::MULTIPLIES && TURNED) ldmatrix_x4_transposed(by, place);
    if constexpr (E::MULTIPLIES && !TURNED) ldmatrix_x4(by, place);
    // add: TURNED of rows r and r + 8; otherwise of the pairs of columns of both blocks.
    const uint32_t v0 = E::at_once(d[0] + add.x, d[1] + (TURNED ? add.x : add.y), by[0]);
    const uint32_t v1 = E::at_once(d[2] + (TURNED ? add.y : add.x), d[3] + add.y, by[1]);
    const uint32_t v2 = E::at_once(d[4] + (TURNED ? add.x : add.z), d[5] + (TURNED ? add.x : add.w), by[2]);
    const uint32_t v3 = E::at_once(d[6] + (TURNED ? add.y : add.z), d[7] + (TURNED ? add.y : add.w), by[3]);
    if constexpr (TURNED) stmatrix_x4_transposed(place, v0, v1, v2, v3);
    else stmatrix_x4(place, v0, v1, v2, v3);
}

// Copies ROWS x 64 values between a box and the matrix, there from `row` and `column` on: to the matrix if STORES, else
// from it. threads: how many threads share the rows.
template <int ROWS, bool STORES>
__device__ __forceinline__ void copy_box(uint8_t* box, const Extent& extent, __nv_bfloat16* matrix, int row, int column,
                                         int thread, int threads) {
    for (int i = thread; i < ROWS * 64; i += threads) {
        const int r = i / 64, c = i % 64;
        if (row + r >= extent.m || column + c >= extent.n) continue;
        uint16_t* place = reinterpret_cast<uint16_t*>(box + r * ROW_BYTES + ((c / 8) ^ r % 8) * 16) + c % 8;
        uint16_t* at = reinterpret_cast<uint16_t*>(matrix) + size_t(row + r) * extent.n + column + c;
        if (STORES) *at = *place;
        else *place = *at;
    }
}

// The consumers' side. add: the addends of rows, TURNED. bias: the addends of columns otherwise, or nullptr.
template <class E, class F>
__device__ __forceinline__ void leave(Shared<F>& shared, PipelineState<F::STAGES>& at, const CUtensorMap* out_map,
                                      const Problem& problem, const float* d, const float* add, const __nv_bfloat16* bias,
                                      int group, int2 tile) {
    constexpr int THREADS = F::TURNED ? WARPGROUP : WARP, PARTS = F::TURNED ? F::HALVES : F::HALVES * F::ACROSS;
    const uint32_t first = at.stage;
#pragma unroll
    for (int slot = 0; slot < F::ENDS; ++slot, at.next()) shared.ring.wait(at);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, thread = threadIdx.x % THREADS;
    const bool by_hand = problem.extent.by_hand;
    const auto meet = [&] {
        if (F::TURNED) named_barrier_sync(BOX_THERE + group, WARPGROUP);
        else __syncwarp();
    };
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int half = F::TURNED ? part : part / F::ACROSS, across = F::TURNED ? 0 : across_of<F>(part % F::ACROSS);
        const uint32_t box = box_place(shared, first, F::TURNED ? part * F::GROUPS + group
                                                                : part * (F::CONSUMERS / WARP) + warp);
        uint8_t* lies = shared.stages[0] + (box - shared.a(0));
        const int a = tile.x + (group * F::HALVES + half) * 64;  // first row of this half's a
        const int row = F::TURNED ? tile.y : a + warp % 4 * 16, column = F::TURNED ? a : tile.y + across;
        if (E::MULTIPLIES && by_hand) {
            copy_box<F::BOX / ROW_BYTES, false>(lies, problem.extent, const_cast<__nv_bfloat16*>(problem.multiplier), row,
                                                column, thread, THREADS);
            meet();
        }
        if constexpr (F::TURNED) {
            const uint32_t place = box + (lane / 16 * 8 + lane % 8) * ROW_BYTES +
                                   ((warp % 4 * 2 + lane / 8 % 2) ^ lane % 8) * 16;
            const float4 both = make_float4(add[2 * half], add[2 * half + 1], 0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < F::COLUMNS / 16; ++j)
                store_blocks<E, true>(place + j * 16 * ROW_BYTES, d + half * F::HALF + 8 * j, both);
            if constexpr (F::COLUMNS % 16) {  // 8 more columns: lanes of the second block name the first's again
                const float* last = d + half * F::HALF + F::HALF - 4;
                const float twice[8] = {last[0], last[1], last[2], last[3], last[0], last[1], last[2], last[3]};
                store_blocks<E, true>(place + (F::COLUMNS - 8 - lane / 16 * 8) * ROW_BYTES, twice, both);
            }
        } else {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                float4 of = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (bias) {
                    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(bias + across + 16 * t + lane % 4 * 2);
                    const float2 one = unpack(pairs[0]), other = unpack(pairs[4]);
                    of = make_float4(one.x, one.y, other.x, other.y);
                }
                store_blocks<E, false>(box + lane % 16 * ROW_BYTES + ((2 * t + lane / 16) ^ lane % 8) * 16,
                                       d + half * F::HALF + across / 2 + 8 * t, of);
            }
        }
        fence_async_proxy();
        meet();
        if (by_hand) {
            copy_box<F::BOX / ROW_BYTES, true>(lies, problem.extent, problem.output, row, column, thread, THREADS);
        } else if (thread == 0) {
#pragma unroll
            for (int some = 0; some < F::BOX / ROW_BYTES; some += F::OUT_ROWS)
                tma_store(out_map, box + some * ROW_BYTES, column, row + some);
        }
    }
    if (thread == 0) bulk_commit_group();
}

}  // namespace derby
