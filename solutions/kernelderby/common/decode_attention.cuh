// Attention of few query tokens a sequence over a paged cache, in one launch for sm_90a: rows (query tokens times query
// heads of a group) fit 8 or 16, contexts have any length.
//
// One CTA a multiprocessor. All pages of all sequences are laid end to end, once for every `together` key heads, and
// each CTA takes an equal stretch of them, whatever the lengths are (the GPU sums them up). Where it costs little,
// every sequence and head group begins with a new stretch. A warp takes a page of one key head at a time, and warps of
// neighbouring heads read neighbouring memory. Each warp loads pages into its own places in shared memory, as many
// ahead as fit, and goes on across the ends of sequences. Where a sequence's pages go to several CTAs, each leaves its
// part in memory, and the last one to finish adds all parts in their order. If there are more than 64 parts, the last
// of each 16 neighbours adds theirs, and the last of all adds these sums. The result is deterministic.
// A file that defines DECODE_ONE_QUERY before it includes this has one query token a sequence: no first_rows, and zeros
// for a sequence without a token. One that defines DECODE_WIDE may have both, and none of first_rows means this; its
// heads of more than 128 values with more than 8 rows go to pairs of warps: each warp of a pair loads half of a page and
// has 8 of the rows, so that queries and sums fit its registers.
// Heads that are smaller than the kernel's (not EXACT) have zeros in shared memory behind them, which no one reads from
// memory.
// Constraints: sm_90a; head_dim a multiple of 8 up to 256; query tokens of a sequence times query heads of a group at most 16; pages
// of 16 tokens; bf16, contiguous, addresses a multiple of 16; the host gives counters that are zero (each call leaves them
// so) and room for the parts.
#pragma once
#include <type_traits>

#include "decode_mma.cuh"
#include "lanes.cuh"

namespace derby_decode {

constexpr int PAGE = 16;
#ifdef DECODE_ONE_QUERY
constexpr bool ONE_QUERY = true;
#else
constexpr bool ONE_QUERY = false;
#endif
#ifdef DECODE_WIDE
constexpr bool WIDE = true;
#else
constexpr bool WIDE = false;
#endif
// Up to MOST_PARTS parts are added by one CTA; of more, first those of NEIGHBOURS neighbours by a CTA each.
constexpr int MOST_PARTS = 64, NEIGHBOURS = 16;
constexpr int FIRST_TEAM = 1;  // named barriers: one of each team, behind that of __syncthreads

struct Arguments {
    // bfloat16 [num_tokens, kv_heads * group, head_dim], the caches [num_blocks, 16, kv_heads, head_dim]
    const __nv_bfloat16 *query, *key_cache, *value_cache;
    const int *first_rows, *lengths, *table;  // [sequences + 1] or none, [sequences], [sequences, table_width]
    __nv_bfloat16* output;                    // like query
    int* counters;                            // [3 CTAs]: zeros, and left as zeros
    float* partials;                          // [2 CTAs, together, ROWS, D + 4]
    int sequences, table_width, kv_heads, group;
    int together;  // key heads of a CTA: divides kv_heads and TEAMS
    float scale;   // of scores, for powers of two
};

struct AnyHead : Arguments {
    int head_dim;
};

template <bool EXACT>
using Given = std::conditional_t<EXACT, Arguments, AnyHead>;

// D: head_dim rounded up to 64, 96, 128, 192 or 256. NT: groups of 8 rows. EXACT: head_dim is D.
template <int D, int NT, int WARPS_, int PLACES_, bool EXACT>
struct Decode {
    static constexpr int ROWS = 8 * NT, WARPS = WARPS_, THREADS = WARPS * 32, FOURS = D / 4, PLACES = PLACES_;
    // Warps that share a page, how many such teams, and a warp's groups of 8 rows.
    static constexpr int TEAM = WIDE && NT == 2 && D > 128 ? 2 : 1, TEAMS = WARPS / TEAM, OWN = NT / TEAM;
    static constexpr int VECTORS = D / 8;  // of 16 bytes, in a token
    // Dimensions lie as 2 x 8 x 4 in each 64, and as 2 x 4 x 4 in 32 that are left.
    static constexpr int BLOCKS = (D + 63) / 64, TAIL = VECTORS - 8 * (BLOCKS - 1);
    static constexpr bool SWIZZLED = VECTORS % 8 == 0;
    static constexpr int VALUE_ROW = VECTORS + !SWIZZLED;  // vectors from a token's values to the next one's
    static_assert(D % 32 == 0 && D <= 256 && (TAIL == 8 || TAIL == 4), "whole products of keys");
    static_assert(NT <= 2 && WARPS <= 8 && PLACES >= 2, "a page is read while the next one comes");

    // outputs: the four dimensions from 64 j + 8 quad + 4 half on lie at place 16 j + 8 half + quad (4 half where 32 are
    // left). The additional place of a row keeps the warps' stores off each other's banks.
    struct Shared {
        uint4 keys[TEAMS][PLACES][PAGE * VECTORS], values[TEAMS][PLACES][PAGE * VALUE_ROW];
        float4 outputs[TEAMS][ROWS][FOURS + 1];
        float2 statistics[TEAMS][ROWS];  // greatest score, sum of weights
        int sums[WARPS], sequence, before, last;
    };

    // A stretch of one sequence's pages for `together` key heads, all in one CTA.
    struct Piece {
        int sequence, heads, first_row, queries, length;  // heads: first key head
        int pages, first, count;                          // of the sequence; of this piece
        int start;                                        // pages before the sequence's first for these heads
    };
    // Goes through the CTA's pieces. before: pages of all heads of the sequences before.
    struct Walk {
        int at, end, sequence, before;
    };

    const Given<EXACT>& given;
    Shared& shared;
    int lane, warp, team, half, quad, corner, chunk;  // half: of the team's pages and rows
    bool even = false;

    __device__ __forceinline__ Decode(const Given<EXACT>& a, Shared& s) : given(a), shared(s) {
        lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
        team = warp / TEAM, half = warp % TEAM;
    }

    __device__ __forceinline__ void sync_team() {
        if constexpr (TEAM == 1) __syncwarp();
        else named_barrier_sync(FIRST_TEAM + team, 32 * TEAM);
    }

    __device__ __forceinline__ bool one_query() { return ONE_QUERY || (WIDE && given.first_rows == nullptr); }

    __device__ __forceinline__ int head_dim() {
        if constexpr (EXACT) return D;
        else return given.head_dim;
    }
    __device__ __forceinline__ bool inside(int dim) { return EXACT || dim < head_dim(); }

    __device__ __forceinline__ int pages_of(int sequence) {
        if (one_query()) return max((__ldg(given.lengths + sequence) + PAGE - 1) / PAGE, 1);
        const bool asked = __ldg(given.first_rows + sequence + 1) > __ldg(given.first_rows + sequence);
        return asked ? (__ldg(given.lengths + sequence) + PAGE - 1) / PAGE : 0;
    }

    // The same, as they are laid out: rounded up to whole stretches where every sequence and head group begins with a
    // new one.
    __device__ __forceinline__ int laid(int pages) { return even ? (pages + chunk - 1) / chunk * chunk : pages; }

    // upto: the sum of `own` over this thread and those before it. all: over all threads.
    __device__ __forceinline__ void sum_up(int own, int& upto, int& all) {
        upto = sum_up_to(own, lane);
        __syncthreads();
        if (lane == 31) shared.sums[warp] = upto;
        __syncthreads();
        all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp) upto += shared.sums[w];
            all += shared.sums[w];
        }
    }

    // Returns the pages of all sequences and key heads. Sets chunk, shared.sequence (where this CTA begins) and
    // shared.before (the pages before that sequence).
    __device__ __forceinline__ int lay_out_pages(int head_groups) {
        const int each = (given.sequences + THREADS - 1) / THREADS, from = min(int(threadIdx.x) * each, given.sequences);
        const int to = min(from + each, given.sequences);
        int own = 0, upto, all;
        for (int sequence = from; sequence < to; ++sequence) own += pages_of(sequence);
        sum_up(own, upto, all);
        const int ctas = gridDim.x, least = 2 * (TEAMS / given.together), groups = given.sequences * head_groups;
        const int equal = max((all * head_groups + ctas - 1) / ctas, least);
        chunk = equal;
        if (groups > 1 && groups <= min(ctas, THREADS)) {
            // The same number of CTAs for each sequence and head group: no CTA then has two of them, and fewer have to
            // add their parts.
            chunk = max((all + given.sequences * (ctas / groups) - 1) / (given.sequences * (ctas / groups)), least);
            int upto_laid, all_laid;
            even = chunk <= equal + equal / 16;
            if (even) {
                sum_up(laid(own), upto_laid, all_laid);
                even = all_laid * head_groups <= ctas * chunk;
            }
            if (even)
                own = laid(own), upto = upto_laid, all = all_laid;
            else
                chunk = equal;
        }
        all *= head_groups;
        const int begin = blockIdx.x * chunk;
        int before = (upto - own) * head_groups;
        if (begin >= before && begin < before + own * head_groups) {
            int sequence = from;
            for (int pages; begin >= before + (pages = laid(pages_of(sequence)) * head_groups); ++sequence)
                before += pages;
            shared.sequence = sequence;
            shared.before = before;
        }
        __syncthreads();
        return all;
    }

    __device__ __forceinline__ bool next(Walk& walk, Piece& piece) {
        while (walk.at < walk.end) {
            piece.sequence = walk.sequence;
            piece.first_row = one_query() ? walk.sequence : __ldg(given.first_rows + walk.sequence);
            piece.queries = one_query() ? 1 : __ldg(given.first_rows + walk.sequence + 1) - piece.first_row;
            piece.length = __ldg(given.lengths + walk.sequence);
            piece.pages = piece.queries > 0 ? (piece.length + PAGE - 1) / PAGE : 0;
            if (one_query()) piece.pages = max(piece.pages, 1);
            const int each = laid(piece.pages), pages = each * (given.kv_heads / given.together);
            if (walk.at < walk.before + pages) {
                const int group = (walk.at - walk.before) / each;
                piece.start = walk.before + group * each;
                piece.heads = group * given.together;
                piece.first = walk.at - piece.start;
                piece.count = min(piece.pages - piece.first, walk.end - walk.at);
                walk.at = even ? walk.end : walk.at + piece.count;
                return true;
            }
            walk.before += pages;
            ++walk.sequence;
        }
        return false;
    }

    // The piece whose pages are being loaded, and the team's next page of it.
    Walk coming;
    Piece ahead;
    int tile_ahead, upcoming = -1;  // upcoming: the page after that, where it is known

    // Asks for the team's next page (the warp's half of it), if there is one.
    __device__ __forceinline__ void fetch_next(int place) {
        while (tile_ahead >= ahead.first + ahead.count) {
            if (!next(coming, ahead)) {
                ahead.first = ahead.count = 0, tile_ahead = 0;
                cp_async_commit_group();
                return;
            }
            tile_ahead = ahead.first + team / given.together;
        }
        const int* entry = given.table + static_cast<long long>(ahead.sequence) * given.table_width + tile_ahead;
        const int page = upcoming >= 0 ? upcoming : __ldg(entry);
        const int head = ahead.heads + team % given.together, left = ahead.length - tile_ahead * PAGE;
        constexpr int ROUND = VECTORS / (VECTORS & -VECTORS);  // loads until a lane has the same vector again
        const int own = lane % VECTORS;                        // that of all its loads, if ROUND is 1
        const long long first = (static_cast<long long>(page) * PAGE * given.kv_heads + head) * head_dim() +
                                (ROUND == 1 && inside(own * 8) ? own * 8 : 0);
#pragma unroll
        for (int i = 0; i < PAGE * VECTORS / 32 / TEAM; ++i) {
            const int index = i % ROUND * 32 + lane, vector = ROUND == 1 ? own : index % VECTORS;
            const int token = half * (PAGE / TEAM) + i / ROUND * (32 * ROUND / VECTORS) + index / VECTORS;
            const bool is_inside = inside(vector * 8);
            const long long from = ROUND == 1 || !is_inside ? first : first + vector * 8;
            const long long offset = from + token * given.kv_heads * head_dim();
            const int bytes = token < left && is_inside ? 16 : 0;
            cp_async16(shared_address(&shared.keys[team][place][key_at(token, vector)]), given.key_cache + offset,
                       bytes);
            cp_async16(shared_address(&shared.values[team][place][value_at(token, vector)]), given.value_cache + offset,
                       bytes);
        }
        cp_async_commit_group();
        tile_ahead += TEAMS / given.together;
        upcoming = tile_ahead < ahead.first + ahead.count ? __ldg(entry + TEAMS / given.together) : -1;
    }
    // Where 16 bytes of a token lie: eight lanes that read at once find them in different banks.
    __device__ __forceinline__ int key_at(int token, int vector) {
        return token * VECTORS + (SWIZZLED ? vector ^ token % 2 * 4 : vector);
    }
    __device__ __forceinline__ int value_at(int token, int vector) {
        return token * VALUE_ROW + (SWIZZLED ? vector ^ token / 2 % 4 * 2 : vector);
    }
    // Of each half of a block of 64 dimensions: places of outputs.
    static __device__ __forceinline__ int width_of(int block) { return block + 1 < BLOCKS ? 8 : TAIL; }
    __device__ __forceinline__ int quad_in(int block) { return width_of(block) == 8 ? quad : quad % 4; }

    __device__ __forceinline__ void run() {
        const int all = lay_out_pages(given.kv_heads / given.together), begin = blockIdx.x * chunk;
        Walk walk = {begin, min(all, begin + chunk), shared.sequence, shared.before};
        coming = walk;
        ahead.first = ahead.count = 0, tile_ahead = 0;
#pragma unroll 1
        for (int place = 0; place < PLACES; ++place) fetch_next(place);
        int place = 0;
        Piece piece;
        while (next(walk, piece)) {
            attend(piece, place);
            put_together(piece);
        }
        cp_async_wait_group<0>();
    }

    // Of a warp. sums[n][4 j + i]: dimensions 64 j + 8 quad + 2 i (x, y) and the next (z, w), rows 8 n + 2 corner (x,
    // z) and the next (y, w), behind the first `half` groups of rows. most and sum have the same rows; sum must still be
    // added up over the lanes of a corner. hidden: tokens at the sequence's end that the row does not see.
    float4 sums[OWN][4 * BLOCKS];
    float most[OWN][2], sum[OWN][2];
    int hidden[OWN][2];

    // Attends to the team's pages of the piece, from `place` on, and leaves outputs and statistics in shared memory.
    __device__ __forceinline__ void attend(const Piece& piece, int& place) {
        const int head = piece.heads + team % given.together, rows = piece.queries * given.group;
        const bool has_rows = TEAM == 1 || 8 * OWN * half < rows;
        uint4 query[OWN][D / 32];
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int row = 8 * (OWN * half + n) + quad, token = row / given.group;
            const __nv_bfloat16* from =
                given.query + (static_cast<long long>(piece.first_row + token) * given.kv_heads * given.group +
                               head * given.group + row - token * given.group) * head_dim() + 8 * corner;
#pragma unroll
            for (int j = 0; j < D / 32; j++) {
                query[n][j] = {0, 0, 0, 0};
                if (row < rows && inside(32 * j + 8 * corner)) query[n][j] = load_constant16(from + 32 * j);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                hidden[n][h] = max(piece.queries - 1 - (8 * (OWN * half + n) + 2 * corner + h) / given.group, 0);
                most[n][h] = -INFINITY, sum[n][h] = 0;
            }
#pragma unroll
            for (int i = 0; i < 4 * BLOCKS; i++) sums[n][i] = {0, 0, 0, 0};
        }
#pragma unroll 1
        for (int tile = piece.first + team / given.together; tile < piece.first + piece.count;
             tile += TEAMS / given.together) {
            cp_async_wait_group<PLACES - 1>();
            sync_team();
            if (has_rows) {
                float4 scores[OWN][2];
#pragma unroll
                for (int n = 0; n < OWN; n++) scores[n][0] = scores[n][1] = {0, 0, 0, 0};
                const uint4 *keys = shared.keys[team][place], *values = shared.values[team][place];
#pragma unroll
                for (int j = 0; j < D / 32; j++) {
                    const uint4 a = keys[key_at(quad, corner + 4 * j)], b = keys[key_at(quad + 8, corner + 4 * j)];
#pragma unroll
                    for (int n = 0; n < OWN; n++) {
                        multiply(scores[n][0], a.x, b.x, a.y, b.y, query[n][j].x, query[n][j].y);
                        multiply(scores[n][1], a.z, b.z, a.w, b.w, query[n][j].z, query[n][j].w);
                    }
                }
                weigh(scores, values, piece.length - tile * PAGE);
            }
            sync_team();  // all lanes have read the page
            fetch_next(place);
            place = place + 1 < PLACES ? place + 1 : 0;
        }
        leave(rows);
    }

    // left: tokens of this page and those behind it.
    __device__ __forceinline__ void weigh(float4 (&scores)[OWN][2], const uint4* values, int left) {
        uint32_t weights[OWN][2];
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            float s[2][2];  // token quad or quad + 8, row 2 corner or the next
            s[0][0] = scores[n][0].x + scores[n][1].x, s[0][1] = scores[n][0].y + scores[n][1].y;
            s[1][0] = scores[n][0].z + scores[n][1].z, s[1][1] = scores[n][0].w + scores[n][1].w;
            float factor[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    s[i][h] = quad + 8 * i < left - hidden[n][h] ? s[i][h] * given.scale : -INFINITY;
                const float greatest = fmaxf(most[n][h], most_of_rows(fmaxf(s[0][h], s[1][h])));
                const float base = greatest == -INFINITY ? 0.f : greatest;  // a row that sees nothing yet
                factor[h] = share(most[n][h], base);
                most[n][h] = greatest;
#pragma unroll
                for (int i = 0; i < 2; i++) s[i][h] = exp2_approx(s[i][h] - base);
                sum[n][h] = sum[n][h] * factor[h] + s[0][h] + s[1][h];
            }
            weights[n][0] = movmatrix_transposed(pack_bf16(s[0][0], s[0][1]));
            weights[n][1] = movmatrix_transposed(pack_bf16(s[1][0], s[1][1]));
#pragma unroll
            for (int i = 0; i < 4 * BLOCKS; i++) {
                sums[n][i].x *= factor[0], sums[n][i].y *= factor[1], sums[n][i].z *= factor[0];
                sums[n][i].w *= factor[1];
            }
        }
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            // Where 32 dimensions are left, the upper quads have the lower ones' again, and leave them out at the end.
            uint4 value[4];
#pragma unroll
            for (int i = 0; i < 4; i++) value[i] = values[value_at(2 * corner + i % 2 + i / 2 * 8, quad_in(j) + 8 * j)];
            const uint32_t* rows[4] = {&value[0].x, &value[1].x, &value[2].x, &value[3].x};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a0 = __byte_perm(rows[0][i], rows[1][i], 0x5410);
                const uint32_t a1 = __byte_perm(rows[0][i], rows[1][i], 0x7632);
                const uint32_t a2 = __byte_perm(rows[2][i], rows[3][i], 0x5410);
                const uint32_t a3 = __byte_perm(rows[2][i], rows[3][i], 0x7632);
#pragma unroll
                for (int n = 0; n < OWN; n++)
                    multiply(sums[n][4 * j + i], a0, a1, a2, a3, weights[n][0], weights[n][1]);
            }
        }
    }

    __device__ __forceinline__ void leave(int rows) {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 8 * (OWN * half + n) + 2 * corner + h;
                const float2 both = {most[n][h], sum_of_rows(sum[n][h])};
                if (row >= rows) continue;
                if (quad == 0) shared.statistics[team][row] = both;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) {
                    const float4 &s = sums[n][2 * i], &t = sums[n][2 * i + 1];
                    const int width = width_of(i / 2);
                    if (width == 8 || quad < width)
                        shared.outputs[team][row][i / 2 * 16 + i % 2 * width + quad] =
                            h ? make_float4(s.y, s.w, t.y, t.w) : make_float4(s.x, s.z, t.x, t.z);
                }
            }
        }
    }

    __device__ __forceinline__ void write(const Piece& piece, int head, int row, int at, float4 all, float sum) {
        const int token = row / given.group, heads = given.kv_heads * given.group;
        const int query_head = (piece.heads + head) * given.group + row - token * given.group;
        const float factor = !one_query() || sum > 0 ? __fdividef(1, sum) : 0;
        const uint2 words = {pack_bf16(all.x * factor, all.y * factor), pack_bf16(all.z * factor, all.w * factor)};
        __nv_bfloat16* to =
            given.output + (static_cast<long long>(piece.first_row + token) * heads + query_head) * head_dim();
        if constexpr (EXACT) {
            *reinterpret_cast<uint2*>(to + at / 16 * 64 + at % 8 * 8 + at / 8 % 2 * 4) = words;
        } else {
            const int width = width_of(at / 16), dim = at / 16 * 64 + at % 16 % width * 8 + at % 16 / width * 4;
            if (inside(dim)) *reinterpret_cast<uint2*>(to + dim) = words;
        }
    }

    // Parts in memory: first the outputs of all slots, then their statistics, then the statistics of what was added in
    // place.
    __device__ __forceinline__ float4* outputs_of(int slot, int head, int row) {
        return reinterpret_cast<float4*>(given.partials) +
               (static_cast<long long>(slot) * given.together + head) * (ROWS * FOURS) + row * FOURS;
    }
    __device__ __forceinline__ float2* statistics_of(int slot, int head, int row) {
        return reinterpret_cast<float2*>(outputs_of(2 * gridDim.x, 0, 0)) +
               (static_cast<long long>(slot) * given.together + head) * ROWS + row;
    }

    // Calls what(head, row, at) for all of a piece, `at` as in Shared.
    template <typename What>
    __device__ __forceinline__ void for_each_four(const Piece& piece, What what) {
        const int rows = piece.queries * given.group;
#pragma unroll 1
        for (int i = warp; i < rows * given.together; i += WARPS) {
            const int head = i / rows, row = i - head * rows;
#pragma unroll 1
            for (int at = lane; at < FOURS; at += 32) what(head, row, at);
        }
    }

    // True in all threads of the CTA that is the last of `count` to come here.
    __device__ __forceinline__ bool comes_last(int counter, int count) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            shared.last = atomicAdd(given.counters + counter, 1) == count - 1;
            if (shared.last) given.counters[counter] = 0;
            __threadfence();
        }
        __syncthreads();
        return shared.last;
    }

    // Adds the teams' parts of a piece, then the parts of several CTAs.
    __device__ __forceinline__ void put_together(const Piece& piece) {
        __syncthreads();
        const bool whole = piece.count == piece.pages;
        const int first = piece.start / chunk, parts = (piece.start + piece.pages - 1) / chunk - first + 1;
        const int part = blockIdx.x - first;
        // A CTA has at most two such parts: one of a sequence that others began, and one of a sequence that others end.
        auto slot_of = [&](int which) { return 2 * (first + which) + (which == 0); };
        for_each_four(piece, [&](int head, int row, int at) {
            float2 both = {-INFINITY, 0};
            float4 all = {0, 0, 0, 0};
#pragma unroll 4
            for (int w = head; w < TEAMS; w += given.together) both.x = fmaxf(both.x, shared.statistics[w][row].x);
#pragma unroll 4
            for (int w = head; w < TEAMS; w += given.together) {
                const float2 its = shared.statistics[w][row];
                const float4 four = shared.outputs[w][row][at];
                const float factor = share(its.x, both.x);
                both.y += factor * its.y;
                all.x += factor * four.x, all.y += factor * four.y, all.z += factor * four.z, all.w += factor * four.w;
            }
            if (whole) {
                write(piece, head, row, at, all, both.y);
            } else {
                __stcg(outputs_of(slot_of(part), head, row) + at, all);
                if (at == 0) __stcg(statistics_of(slot_of(part), head, row), both);
            }
        });
        if (whole) {
            __syncthreads();
            return;
        }
        const bool several = parts > MOST_PARTS;
        const int leader = several ? part / NEIGHBOURS * NEIGHBOURS : 0;
        int from = leader, step = 1, counter = slot_of(leader);
        int count = several ? min(NEIGHBOURS, parts - leader) : parts;
#pragma unroll 1
        for (bool again = false;; again = true) {
            if (!comes_last(counter, count)) return;
            const bool end = again || !several;
            merge(piece, count, [&](int i) { return slot_of(from + i * step); }, again ? 2 * gridDim.x : 0,
                  end ? -1 : slot_of(leader));
            if (end) return;
            from = 0, step = NEIGHBOURS, count = (parts + NEIGHBOURS - 1) / NEIGHBOURS, counter = 2 * gridDim.x + first;
        }
    }

    // Adds the parts in `count` slots, at most MOST_PARTS, whose statistics lie `step` slots further. The sum goes to
    // the output, or in place to slot `to` and its statistics to slot `to` + 2 gridDim.x.
    template <typename Slot>
    __device__ __forceinline__ void merge(const Piece& piece, int count, Slot slot, int step, int to) {
        if (piece.queries * given.group * given.together * FOURS > THREADS)
            add_parts<4, 8>(piece, count, slot, step, to);
        else
            add_parts<1, 16>(piece, count, slot, step, to);
        __syncthreads();  // the next piece's outputs go where the factors lie
    }

    // A thread adds IT fours at a time. AT_ONCE parts of them are on their way together, the first ones before their
    // factors are known.
    template <int IT, int AT_ONCE, typename Slot>
    __device__ __forceinline__ void add_parts(const Piece& piece, int count, Slot slot, int step, int to) {
        const int rows = piece.queries * given.group, items = rows * given.together * FOURS;
        auto factors = reinterpret_cast<float*>(shared.outputs);  // [MOST_PARTS][ODD]
        auto wholes = reinterpret_cast<float2*>(shared.statistics);
        static_assert(sizeof(float) * ODD * MOST_PARTS <= sizeof(shared.outputs), "factors lie where outputs lay");
        float4 its[AT_ONCE][IT];
        int place[IT], offset[IT];
        auto find = [&](int base) {
#pragma unroll
            for (int k = 0; k < IT; ++k) {
                const int item = min(base + k * THREADS, items - 1);
                place[k] = item / FOURS;
                const int head = place[k] / rows;
                offset[k] = head * (ROWS * FOURS) + (place[k] - head * rows) * FOURS + item % FOURS;
            }
        };
        auto ask = [&](int first) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float4* from = outputs_of(slot(min(first + i, count - 1)), 0, 0);
#pragma unroll
                for (int k = 0; k < IT; ++k) its[i][k] = __ldcg(from + offset[k]);
            }
        };
        constexpr bool EARLY = IT == 1;  // all items have their thread
        if (EARLY) find(threadIdx.x), ask(0);
        weigh_parts(count, slot, step, rows, factors, wholes);
#pragma unroll 1
        for (int base = threadIdx.x; base < items; base += THREADS * IT) {
            if (!EARLY) find(base);
            float4 all[IT];
#pragma unroll
            for (int k = 0; k < IT; ++k) all[k] = {0, 0, 0, 0};
#pragma unroll 1
            for (int first = 0; first < count; first += AT_ONCE) {
                if (!EARLY || first > 0) ask(first);
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    if (first + i >= count) break;
#pragma unroll
                    for (int k = 0; k < IT; ++k) {
                        const float factor = factors[(first + i) * ODD + place[k]];
                        all[k].x += factor * its[i][k].x, all[k].y += factor * its[i][k].y;
                        all[k].z += factor * its[i][k].z, all[k].w += factor * its[i][k].w;
                    }
                }
            }
#pragma unroll
            for (int k = 0; k < IT; ++k) {
                const int item = base + k * THREADS, head = place[k] / rows, row = place[k] - head * rows;
                if (item >= items) break;
                if (to < 0) {
                    write(piece, head, row, item % FOURS, all[k], wholes[place[k]].y);
                } else {
                    __stcg(outputs_of(to, 0, 0) + offset[k], all[k]);
                    if (item % FOURS == 0) __stcg(statistics_of(to + 2 * gridDim.x, head, row), wholes[place[k]]);
                }
            }
        }
    }

    static constexpr int ODD = TEAMS * ROWS + 1;  // keeps a row's factors off each other's banks

    // Every part's factor, and the sum of weights over all parts: each warp takes a row, each lane every 32nd part.
    template <typename Slot>
    __device__ __forceinline__ void weigh_parts(int count, Slot slot, int step, int rows, float* factors, float2* wholes) {
        constexpr int EACH = MOST_PARTS / 32;
#pragma unroll 2
        for (int place = warp; place < rows * given.together; place += WARPS) {
            const int head = place / rows, row = place - head * rows;
            float2 both[EACH];
            float most = -INFINITY, sum = 0;
#pragma unroll
            for (int k = 0; k < EACH; ++k) {
                const int part = lane + 32 * k;
                both[k] = {-INFINITY, 0};
                if (part < count) both[k] = __ldcg(statistics_of(slot(part) + step, head, row));
                most = fmaxf(most, both[k].x);
            }
#pragma unroll
            for (int other = 1; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
#pragma unroll
            for (int k = 0; k < EACH; ++k) {
                const float factor = share(both[k].x, most);
                sum += factor * both[k].y;
                if (lane + 32 * k < count) factors[(lane + 32 * k) * ODD + place] = factor;
            }
#pragma unroll
            for (int other = 1; other < 32; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
            if (lane == 0) wholes[place] = {most, sum};
        }
        __syncthreads();
    }
};

template <int D, int NT, int WARPS, int PLACES, bool EXACT>
__global__ void __launch_bounds__(WARPS * 32, 1) derby_decode_attention(const __grid_constant__ Given<EXACT> given) {
    using Kernel = Decode<D, NT, WARPS, PLACES, EXACT>;
    Kernel(given, *reinterpret_cast<typename Kernel::Shared*>(shared_memory())).run();
}

}  // namespace derby_decode
