"""The kernel of derby_unified_attention_sm90 for short sequences: it compiles without spills, what its host side
decides and how its places go round; on a GPU, every tail against the reference."""

import dataclasses
import json
import shutil
import subprocess
import sys

import nvcc
import pytest
import torch
from on_host import nvcc_of
from rowwise_cases import CATALOG, ROOT, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAME = "unified_attention"
MOST_ERROR = 0.0028  # norm of the error over the result's; FlashAttention 3 has 0.0026 on its worst shape
LIMITS = [(64, 256), (128, 256), (256, 128)]  # head_dim, tokens of a sequence
# Both ways through a tile's blocks, whatever the call.
WAYS = [
    ("    return units * tiles_of_unit", f"    return {way}; return units * tiles_of_unit") for way in ("false", "true")
]


def module(edits=()):
    """The solution's module, after edits (old, new) of its sources."""
    solution = CATALOG.solution("derby_unified_attention_sm90")
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(NAME), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


def test_it_compiles_without_spills():
    solution = module()
    found = nvcc.kernels_of(nvcc_of(solution), solution.short_library.folder / "short.cu")
    assert len(found) == 2 + 2 + 1  # blocks of keys together or one by one; with head_dim 256 the latter alone
    for name, used, spilled in map(dataclasses.astuple, found):
        assert "derby_short_attention" in name and spilled == 0, (name, spilled)
        # setmaxnreg waits for ever for registers that the CTA did not have at its start.
        warpgroups, asked = (3, 2 * 208 + 88) if "ILi256E" in name else (4, 3 * 144 + 80)
        assert warpgroups * used >= asked, (name, used)


HOST = r"""
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <initializer_list>
#include <vector>
#include "short_launch.cuh"
using namespace derby_short;
#define EXPECT(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

template <int COUNT>
void places_go_round() {  // each unit takes the places that came free first; parities alternate at every use
    Places<COUNT> places;
    int queue[COUNT], uses[COUNT] = {};
    for (int i = 0; i < COUNT; ++i) queue[i] = i;
    for (int unit = 0; unit < 1000; ++unit) {
        const int blocks = rand() % (COUNT + 1);
        for (int b = 0; b < blocks; ++b) {
            EXPECT(places.of(b) == queue[b]);
            EXPECT(places.parity(queue[b]) == uses[queue[b]] % 2);
        }
        int next[COUNT];
        for (int i = 0; i < COUNT; ++i) next[i] = i < COUNT - blocks ? queue[i + blocks] : queue[COUNT - 1 - i];
        for (int b = 0; b < blocks; ++b) ++uses[queue[b]];
        for (int i = 0; i < COUNT; ++i) queue[i] = next[i];
        places.advance(blocks);
    }
}

// Every tile of every unit, also of shorter ones, goes to one CTA; none costs much more than its share.
void shares_cover_all(int units, int group, int longest, int processors) {
    Parameters p = {};
    choose_tile(group, longest, &p.tile_heads, &p.tile_tokens);
    p.head_groups.set(group / p.tile_heads);
    p.by_tokens.set(p.tile_tokens);
    const int ctas = share_out(p, units, longest, processors), most = p.by_most.number, groups = p.head_groups.number;
    EXPECT(ctas >= 1 && ctas <= processors && most == (longest + p.tile_tokens - 1) / p.tile_tokens * groups);
    std::vector<int> taken(units * 2);
    double dearest = 0, all = 0, longest_tile = 0;
    for (int cta = 0; cta < ctas; ++cta) {
        double cost = 0;
        auto take = [&](int unit, int from, int to) {
            EXPECT(unit >= 0 && unit < units && from < to && to <= most);
            cost += 8;
            for (int tile = from; tile < to; ++tile) {
                const int tokens = (most / groups - tile / groups) * p.tile_tokens;
                const double one = 3 + 2 * ((tokens + BLOCK - 1) / BLOCK);
                cost += one, all += one, longest_tile = one > longest_tile ? one : longest_tile;
            }
            for (int half : {0, 1}) {  // the unit itself, and one with half the tiles
                const int tiles = half ? most / 2 : most, begin = p.by_most.divide(from * tiles);
                EXPECT(taken[2 * unit + half] == begin || from == 0);
                EXPECT(begin == from * tiles / most);
                taken[2 * unit + half] += p.by_most.divide(to * tiles) - begin;
            }
        };
        for (int unit = cta; unit < p.whole; unit += ctas) take(unit, 0, most);
        for (int at = p.cuts[cta]; at < p.cuts[cta + 1];) {
            const int unit = at / most, from = at % most, to = std::min(most, from + p.cuts[cta + 1] - at);
            take(p.whole + unit, from, to);
            at += to - from;
        }
        dearest = cost > dearest ? cost : dearest;
    }
    for (int unit = 0; unit < units; ++unit) EXPECT(taken[2 * unit] == most && taken[2 * unit + 1] == most / 2);
    EXPECT(dearest <= (all + 8.0 * units) / processors + longest_tile + 24);
    if (units * most <= processors) EXPECT(ctas == units * most);  // every tile its own multiprocessor
}

// Of `count` tiles, longest first, each comes once: the shortest ones first, then no longer one after a shorter, so
// that no block of keys is wanted again that has been given back.
void each_tile_comes_once(int count, int early) {
    std::vector<int> times(count);
    for (int i = 0, last = -1; i < count; ++i) {
        const int tile = Unit::order(i, count, early);
        EXPECT(tile >= 0 && tile < count);
        ++times[tile];
        EXPECT(i < early ? tile == count - 1 - i : tile > last);
        if (i >= early) last = tile;
    }
    for (int tile = 0; tile < count; ++tile) EXPECT(times[tile] == 1);
}

// The pieces of a page that a sequence holds in part make up the page, and none has both held and free slots.
void pieces_make_up_a_page(int tokens) {
    int times[PAGE] = {}, held[PAGE] = {};
    for (int i = 0; i < PIECES; ++i) {
        const Piece piece = piece_of_page(i, tokens);
        EXPECT(piece.at >= 0 && piece.at + piece.rows <= PAGE && (piece.rows == 1 || piece.rows == QUAD));
        for (int row = piece.at; row < piece.at + piece.rows; ++row) ++times[row], held[row] = piece.held;
    }
    for (int row = 0; row < PAGE; ++row) EXPECT(times[row] == 1 && held[row] == (row < tokens));
    EXPECT(OUTSIDE + PAGE <= 0 && PIECES * Sizes<256>::PARTS <= WARP);
}

// A summary overwrites one that all consumers have done with: the place of its block 0 has been given back since.
template <int COUNT>
void summaries_last() {
    Places<COUNT> places;
    int user[COUNT];  // the unit that had the place last
    std::fill(user, user + COUNT, -1);
    for (int unit = 0; unit < 10000; ++unit) {
        EXPECT(user[places.of(0)] >= unit - COUNT);
        const int blocks = 1 + rand() % COUNT;
        if (user[places.of(0)] == unit - COUNT && unit >= COUNT)
            for (int b = 0; b < COUNT; ++b) EXPECT(b == places.of(0) || user[b] > unit - COUNT);  // its last one
        for (int b = 0; b < blocks; ++b) user[places.of(b)] = unit;
        places.advance(blocks);
    }
}

int main() {
    summaries_last<2>();
    summaries_last<4>();
    for (int count = 1; count < 50; ++count)
        for (int early : {0, 1, EARLY, 60}) each_tile_comes_once(count, early);
    Call call = {};
    call.processors = 132;
    EXPECT(!goes_together<128>(66, 10, call) && goes_together<128>(67, 10, call));
    EXPECT(!goes_together<64>(3000, 3, call) && goes_together<64>(3000, 4, call));
    places_go_round<2>();
    places_go_round<4>();
    for (int tokens = 1; tokens < PAGE; ++tokens) pieces_make_up_a_page(tokens);
    for (int by = 1; by <= 300; ++by) {
        Divider divider;
        divider.set(by);
        for (int value = 0; value < 1 << 16; ++value)
            EXPECT(divider.divide(value) == value / by && divider.rest(value) == value % by);
    }
    for (int group = 1; group <= 128; ++group)
        for (int longest : {1, 2, 7, 16, 64, 255, 256}) {
            int heads = 0, tokens = 0;
            choose_tile(group, longest, &heads, &tokens);
            EXPECT(heads >= 1 && group % heads == 0 && tokens >= 1 && tokens <= longest && heads * tokens <= TILE_ROWS);
            if (longest >= TILE_ROWS) EXPECT(heads * tokens == TILE_ROWS || group % 2);
        }
    for (int units : {1, 8, 72, 130, 132, 133, 290, 1300})
        for (int group : {1, 4, 7, 10, 16, 65})
            for (int longest : {1, 16, 145, 256}) shares_cover_all(units, group, longest, 132);
    puts("fine");
}
"""


def test_what_the_host_decides_and_how_places_go_round(tmp_path):
    solution = module()
    (tmp_path / "host.cu").write_text(HOST)
    kernels_left = ["-gencode=arch=compute_90a,code=compute_90a", "-Xcicc", "-O0"]  # as PTX, not optimised: quickly
    includes = [solution.short_library.folder]
    made = nvcc.program(nvcc_of(solution), tmp_path / "host.cu", "-std=c++17", *kernels_left, includes=includes)
    ran = subprocess.run([made.path], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "fine\n")


@pytest.mark.parametrize("head_dim, most", LIMITS)
def test_which_kernel_a_call_gets(head_dim, most, monkeypatch):
    solution, called = module(), []
    monkeypatch.setattr(solution, "short_library", lambda *arguments: called.append("short"))
    monkeypatch.setattr(solution, "library", lambda *arguments: called.append("long"))
    monkeypatch.setattr(solution, "shares_library", lambda *arguments: called.append("shares"))
    for library in ("decode_library", "wide_library"):
        monkeypatch.setattr(solution, library, lambda *arguments: called.append("few rows"))
    monkeypatch.setattr(solution, "workspace", lambda *arguments: (None, None))
    monkeypatch.setattr(solution.paged_decode, "run_with", lambda *arguments: called.append("decode"))
    monkeypatch.setattr(solution.planning, "processors", lambda device: 132)
    for sequences, queries, length in (
        (16, 2, 2),
        (16, 2, most),
        (16, 2, most + 1),
        (15, 2, most + 1),
        (16, 6, most + 1),
        (16, 1, most),
        (15, 1, most + 1),
        (32, 2, 4000),
        (1, 2, 33000),
    ):
        case = case_of(
            NAME,
            num_tokens=sequences * queries,
            num_seqs=sequences,
            len_cu_seqlens=sequences + 1,
            num_blocks=sequences * -(-length // 16),
            max_blocks_per_seq=-(-length // 16),
            num_query_heads=12,
            num_kv_heads=4,
            max_query_len=queries,
            max_seq_len=length,
            head_dim=head_dim,
            sm_scale=head_dim**-0.5,
        )
        solution.run(*inputs_of(NAME, case).values(), *outputs_of(NAME, case).values())
    # Drafts of one length, or ragged, with fewer of the large tiles; a single sequence, whose tiles leave the GPU idle.
    drafts = "shares" if head_dim == 256 else "long"
    assert called == ["short", "short", "long", "long", "long", "decode", "decode", drafts, "shares"]


# On a GPU -------------------------------------------------------------------------------------------------------------


def sizes(head_dim, group, queries, most, tokens=None, sequences=7):
    """Axes of a batch: `queries` the longest query, `most` the longest sequence."""
    tokens = sequences * queries if tokens is None else tokens
    blocks = -(-most // 16)
    return {
        "num_tokens": tokens,
        "num_seqs": sequences,
        "len_cu_seqlens": sequences + 1,
        "num_blocks": sequences * blocks,
        "max_blocks_per_seq": blocks + 1,
        "num_query_heads": 3 * group,
        "num_kv_heads": 3,
        "head_dim": head_dim,
        "max_query_len": queries,
        "max_seq_len": most,
        "sm_scale": head_dim**-0.5,
    }


def gpu_cases():
    for head_dim, most in LIMITS:
        for group in (1, 2, 4, 5, 7, 8, 10, 16, 64, 65):
            yield sizes(head_dim, group, most, most)  # no context
            yield sizes(head_dim, group, most, most, tokens=2 * most)  # ragged
            yield {**sizes(head_dim, group, 3, most, tokens=11), "num_blocks": 40}  # ragged contexts
            yield sizes(head_dim, group, 1, most, sequences=150)  # decode
            yield sizes(head_dim, group, 1, 1, sequences=1)
            yield sizes(head_dim, group, 17, most - 3, sequences=1)


def check(changes):
    case = case_of(NAME, **changes)
    inputs, outputs = inputs_of(NAME, case, "cuda"), outputs_of(NAME, case, "cuda")
    module().run(*inputs.values(), *outputs.values())
    verdict = judge(CATALOG.definition(NAME), reference(NAME), inputs, outputs)
    assert verdict.status is Status.PASSED, (changes, verdict)
    wanted = reference(NAME).run(*inputs.values()).double()
    assert float((outputs["output"].double() - wanted).norm() / wanted.norm()) <= MOST_ERROR, changes
    return inputs, outputs


@pytest.mark.gpu
def test_every_tail():
    for changes in gpu_cases():
        check(changes)


def spoil(inputs, value):
    """`value` in all slots without a sequence; table entries behind a sequence's last block name a block full of it."""
    spoilt = {name: given.clone() if isinstance(given, torch.Tensor) else given for name, given in inputs.items()}
    blocks = len(inputs["key_cache"])
    held = torch.zeros(blocks + 1, 16, dtype=torch.bool, device="cuda")
    for sequence, length in enumerate(inputs["seq_lens"].tolist()):
        used = -(-length // 16)
        slots = torch.arange(used * 16, device="cuda").view(used, 16) < length
        held[inputs["block_table"][sequence, :used].long()] = slots
        spoilt["block_table"][sequence, used:] = blocks
    for name in ("key_cache", "value_cache"):
        spoilt[name] = torch.cat([inputs[name], inputs[name][:1]])
        spoilt[name][~held] = value
    return spoilt


def every_length(head_dim, most, context):
    """Inputs with a sequence of each length from 1 to `most`, all queries or, with `context`, only a few, shuffled."""
    generator = torch.Generator().manual_seed(5)
    lengths = 1 + torch.randperm(most, generator=generator)
    queries = (lengths % 7 + 1).minimum(lengths) if context else lengths
    used = -(-lengths // 16)
    table = torch.zeros(most, -(-most // 16) + 1, dtype=torch.int32)
    taken = torch.arange(table.shape[1]) < used.unsqueeze(1)
    table[taken] = torch.randperm(int(used.sum()), generator=generator).int()

    def normal(*shape):
        return torch.randn(shape, generator=generator).bfloat16().cuda()

    cache = (int(used.sum()), 16, 2, head_dim)
    return {
        "query": normal(int(queries.sum()), 8, head_dim),
        "key_cache": normal(*cache),
        "value_cache": normal(*cache),
        "cu_seqlens_q": torch.cat([torch.zeros(1, dtype=torch.int64), queries.cumsum(0)]).int().cuda(),
        "seq_lens": lengths.int().cuda(),
        "block_table": table.cuda(),
        "max_query_len": int(queries.max()),
        "max_seq_len": most,
        "sm_scale": head_dim**-0.5,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim, most", LIMITS)
@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("way", range(2), ids=("apart", "together"))
def test_what_lies_behind_a_sequence_does_not_count(head_dim, most, context, way):
    """Every length; NaN, infinity and huge values in the last block's free slots and in the blocks behind it."""
    inputs, run = every_length(head_dim, most, context), module([WAYS[way]]).run
    output = torch.empty_like(inputs["query"])
    run(*inputs.values(), output)
    wanted = reference(NAME).run(*inputs.values()).double()
    assert float((output.double() - wanted).norm() / wanted.norm()) <= MOST_ERROR
    for value in (float("nan"), float("inf"), 3e38):
        again = torch.full_like(output, float("nan"))
        run(*spoil(inputs, value).values(), again)
        assert torch.equal(output, again), value


@pytest.mark.gpu
def test_large_scores():
    """Rows whose highest score comes late and is far above the earlier ones: the output is scaled on the way."""
    changes = sizes(128, 4, 256, 256)
    case = case_of(NAME, **changes)
    inputs, outputs = inputs_of(NAME, case, "cuda"), outputs_of(NAME, case, "cuda")
    inputs["query"] *= 30
    module().run(*inputs.values(), *outputs.values())
    wanted = reference(NAME).run(*inputs.values()).double()
    assert float((outputs["output"].double() - wanted).norm() / wanted.norm()) <= MOST_ERROR


SANITIZED = """
import json, sys
sys.path[:0] = [{tests!r}, {root!r}]
import test_short_attention as tests
edited = tests.module(json.loads({edits!r}))
tests.module = lambda: edited
for head_dim, most in tests.LIMITS:
    tests.check(tests.sizes(head_dim, 4, most, most, tokens=2 * most, sequences=5))
    tests.check(tests.sizes(head_dim, 10, 3, most, tokens=11, sequences=5))
"""
# A warp has read a unit's summary, is together, and its first lane gives the unit's place back: racecheck sees that
# only where every lane does so.
SEEN_BY_RACECHECK = [
    (
        "if (lane == 0) mbarrier_arrive(shared_address(&shared.block_empty[",
        "mbarrier_arrive(shared_address(&shared.block_empty[",
    ),
    (
        "mbarrier_init(shared_address(&shared.block_empty[i]), S::CONSUMERS * 4);",
        "mbarrier_init(shared_address(&shared.block_empty[i]), S::CONSUMERS * WARPGROUP);",
    ),
]


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS, ids=("apart", "together"))
@pytest.mark.parametrize(
    "tool, edits", [("memcheck", []), ("racecheck", SEEN_BY_RACECHECK)], ids=("memcheck", "racecheck")
)
def test_the_sanitizer_finds_nothing(tool, edits, way):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH")
    program = SANITIZED.format(tests=str(ROOT / "tests" / "solutions"), root=str(ROOT), edits=json.dumps([*edits, way]))
    done = subprocess.run(
        [
            sanitizer,
            "--tool",
            tool,
            "--kernel-name",
            "regex=derby",
            "--error-exitcode",
            "9",
            sys.executable,
            "-c",
            program,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
