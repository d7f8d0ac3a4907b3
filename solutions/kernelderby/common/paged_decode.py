"""Decode attention over a paged cache, the host's side of paged_decode.cu, paged_decode_long.cu,
paged_decode_other.cu, decode_wide.cu and attention_shares.cu.

Each context gets a block or a cluster of blocks, or each multiprocessor gets an equal stretch of all pages or an equal
share of the keys of all tiles; estimated times decide. A context includes the query's own token. Any head_dim is taken;
above 256, and at sizes that 8 does not divide, in other forms.
"""

import functools
import importlib
import itertools

import torch

cuda_library, estimates, sharing, workspaces = (
    importlib.import_module(f"{__package__}.{name}")
    for name in ("cuda_library", "paged_decode_estimates", "attention_sharing", "workspaces"))

POINTER, INT, LONG, FLOAT = cuda_library.POINTER, cuda_library.INT, cuda_library.LONG, cuda_library.FLOAT
library = cuda_library.CudaLibrary(__file__, "derby_paged_attention_decode_sm90", "paged_decode.cu",
                                   [POINTER] * 6 + [INT] * 6 + [FLOAT] + [INT] * 3)
long_library = cuda_library.CudaLibrary(__file__, "derby_paged_attention_long", "paged_decode_long.cu",
                                        [POINTER] * 8 + [INT] * 5 + [FLOAT] + [INT] * 2)
other_library = cuda_library.CudaLibrary(__file__, "derby_paged_attention_other", "paged_decode_other.cu",
                                         [POINTER] * 8 + [INT] * 5 + [FLOAT] + [INT] * 2)
wide_library = cuda_library.CudaLibrary(__file__, "derby_decode_wide", "decode_wide.cu",
                                        [POINTER] * 9 + [INT] * 6 + [FLOAT] + [INT] * 2)
shares_library = cuda_library.CudaLibrary(__file__, "derby_attention_in_shares", "attention_shares.cu",
                                          [POINTER] * 9 + [LONG] * 2 + [INT] * 5 + [FLOAT] + [INT] * 7)
workspace = workspaces.Workspace(torch.float32)
ROWS = {}  # device -> of first_rows()
# Of paged_decode.cu; bytes of an address and of 8 values; multiprocessors of an H200.
PAGE, MOST_DIM, MOST_WARPS, VECTOR, SMS = 16, 256, 8, 16, 132
# Kernels of stretches: head_dim -> least head_dim, warps; heads a key head. Those of paged_decode_long.cu: head_dim ->
# heads a key head.
STRETCHES, STRETCH_HEADS = {64: (64, 8), 96: (72, 8), 128: (104, 8), 192: (136, 4), 256: (256, 4)}, 16
FIRST = {64: 16, 128: 16, 256: 8}
WIDE, FEW = 200, 8  # decode_wide.cu has one query token a sequence: least head_dim, and with more heads a key head
PAGE_DIMS = 64, 128, 256  # of heads, in one_page.cuh
MOST_GROUP = 16  # query heads a key head, in equal shares


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else SMS


@functools.cache
def has_shares(device):
    """Whether the GPU has what the kernel for equal shares needs: Hopper alone. True on a CPU, for tests."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == 9


def sizes(query, key_cache, max_context_len):
    """(blocks without splits, pages of the longest context), both at least 1; pages are rounded up to a sixteenth of an
    octave, so that a growing context does not need a new choice at each step."""
    kv_heads = key_cache.shape[2]
    group = query.shape[1] // kv_heads
    heads = 16 if group > 8 and query.shape[2] <= 128 else 8  # of a block, as in paged_decode.cu
    pages = max(-(-max_context_len // PAGE), 1)
    step = max(power(pages) >> 5, 1)
    return max(query.shape[0] * kv_heads * -(-group // heads), 1), -(-pages // step) * step


def power(number):
    """The least power of two from `number` on, and 1."""
    return 1 << max(number - 1, 0).bit_length()


def tuning_key(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    units, pages = sizes(query, key_cache, max_context_len)
    kv_heads, full = key_cache.shape[2], sixteenths(query, key_cache, pages)
    return (f"units={units} pages<={pages} kv_heads={kv_heads} group={query.shape[1] // kv_heads} "
            f"dim={query.shape[2]} full={full}")


def sixteenths(query, key_cache, pages):
    """Of the pages that sequences as long as the longest would have: how many the cache has, at most 16."""
    return min(-(-16 * key_cache.shape[0] // max(len(query) * pages, 1)), 16)


def long_kernel(head_dim, group):
    """Of STRETCHES, the kernel for these heads, or None."""
    if group > STRETCH_HEADS:
        return None
    if group > FEW and WIDE <= head_dim <= MOST_DIM:
        return MOST_DIM
    return next((size for size, (least, _) in STRETCHES.items() if least <= head_dim <= size), None)


def candidates(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale):
    """Either splits: blocks that share a context; warps: of a block, each with a page at a time; sliced: whether each
    block of a cluster reads all keys and a slice of the values, rather than some pages. Or together: key heads of a
    multiprocessor, where each multiprocessor has an equal stretch of all pages. Or split: in equal shares, by the
    kernel for many (0) or for few rows (1). Ordered by estimated time; for up to 8 pages the choice of
    for_short_contexts() comes first.
    """
    units, pages = sizes(query, key_cache, max_context_len)
    head_dim, group = query.shape[2], query.shape[1] // key_cache.shape[2]
    found = [config for _, config in estimated(query, key_cache, max_context_len)]
    if pages <= MOST_WARPS:
        page_each = pages > 2 and group <= 8 and head_dim in PAGE_DIMS
        found.insert(0, for_short_contexts(units, pages, group, head_dim, page_each))
        if page_each:
            found += [{"splits": splits, "warps": 8, "sliced": 1} for splits in (2, 4) if 32 * splits <= head_dim]
    return [config for number, config in enumerate(found) if config not in found[:number]]


def estimated(query, key_cache, max_context_len):
    """[(microseconds, configuration)], the shortest first."""
    units, pages = sizes(query, key_cache, max_context_len)
    kv_heads, head_dim, ctas = key_cache.shape[2], query.shape[2], processors(query.device)
    group, found = query.shape[1] // kv_heads, []
    most = sixteenths(query, key_cache, pages) / 16
    batch = estimates.batch_of(max(len(query), 1), kv_heads, group, head_dim, pages, most, ctas)
    for splits, warps in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8)):
        if splits * warps < 2 * pages and (splits == 1 or splits * units <= 16 * ctas) and (warps > 1 or pages <= 8):
            found.append((estimates.of_clusters(batch, splits, warps), {"splits": splits, "warps": warps, "sliced": 0}))
    if pages > MOST_WARPS:
        size = long_kernel(head_dim, group)
        for together in (1, 2, 4, 8):
            if size and kv_heads % together == 0 and together <= STRETCHES[size][1]:
                found.append((estimates.of_stretches(batch, together), {"together": together}))
        for split in (0, 1) if group <= MOST_GROUP and has_shares(query.device) else ():
            if shares(split, *query.shape, kv_heads, pages * PAGE, ctas):
                found.append((estimates.of_shares(batch, split), {"split": split}))
    return sorted(found, key=lambda one: one[0])


@functools.lru_cache(maxsize=4096)
def shares(split, sequences, heads, head_dim, kv_heads, longest, ctas):
    """How the kernel for equal shares cuts the call, or None where it does not take it."""
    if head_dim % 8 or head_dim > MOST_DIM:
        return None
    call = sharing.planning.Call(sequences, sequences, 1, longest, heads, kv_heads, head_dim, True, ctas)
    shared = next(sharing.Shared(work, 1.0) for work in call.works(sharing.FEW) if work.split == split)
    return shared.plan() if shared.takes() else None


def for_short_contexts(units, pages, group, head_dim, page_each):
    """What was fastest on the H200 for up to 8 pages. If the GPU holds all pages at once: a warp for each page, over
    all multiprocessors, sliced if these are too few for 8 a context and groups are large or keys small. If contexts
    fill the GPU twice: a warp for each context. Else blocks of 4 warps, three on a multiprocessor, or of 8, one on
    each."""
    sliced = 0
    if page_each and (units < 16 * SMS if pages <= 4 else units * pages <= SMS * MOST_WARPS):
        parts = power(pages)
        splits = min(parts, 1 << max((SMS // units).bit_length() - 1, 0))
        sliced = int(parts == 8 and 1 < splits < 8 and (group > 4 or head_dim == 64))
        splits, warps = (min(splits, head_dim // 32), 8) if sliced else (splits, parts // splits)
    elif units * pages <= SMS * MOST_WARPS:
        pages_each = 1 if head_dim > 128 else 2
        splits = min(max(power(pages) // pages_each, 1), power(SMS // units // 2 + 1))
        warps = -(-pages // splits)
    elif units >= 16 * SMS:
        splits, warps = 1, 1
    else:
        splits = min(power(-(-3 * SMS // units)), max(power(pages) // 8, 1))
        warps = min(pages, 4 if splits * units > SMS else MOST_WARPS)
    return {"splits": splits, "warps": warps, "sliced": sliced}


def first_rows(device, sequences):
    """int32 [sequences + 1]: where each sequence's query token lies. Kept, but for those of a capture, which fills its
    own at each replay."""
    if device not in ROWS:
        if workspaces.place(device)[1]:
            return torch.arange(sequences + 1, dtype=torch.int32, device=device)
        ROWS[device] = torch.arange(sharing.MOST_SEQUENCES + 1, dtype=torch.int32, device=device)
        if device.type == "cuda":  # other streams read it too
            torch.cuda.current_stream(device).synchronize()
    return ROWS[device]


def padded(tensor):
    """The tensor with heads of a multiple of 8 values, at an address that is a multiple of 16: itself if it is so
    already."""
    if tensor.shape[-1] % 8 == 0 and tensor.data_ptr() % VECTOR == 0:
        return tensor
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8)).clone()


def run_with(config, query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    if not query.numel():
        return
    if query.shape[2] > MOST_DIM:
        kernels = importlib.import_module(f"{__package__}.paged_decode_triton")
        inputs = query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale
        with torch.cuda.device_of(output):
            kernels.run_with(kernels.candidates(*inputs)[0], *inputs, output)
        return
    if query.shape[2] % 8 or any(one.data_ptr() % VECTOR for one in (query, key_cache, value_cache, output)):
        wide = torch.empty_like(padded(query))
        run_with(config, padded(query), padded(key_cache), padded(value_cache), block_table, context_lens,
                 max_context_len, sm_scale, wide)
        output.detach().copy_(wide[..., :output.shape[-1]])
        return
    (sequences, heads, head_dim), kv_heads = query.shape, key_cache.shape[2]
    if "split" in config:
        ctas = processors(query.device)
        made = shares(config["split"], sequences, heads, head_dim, kv_heads, int(max_context_len), ctas)
        counters, parts = workspace(query.device, 2, made.floats).tensors
        shares_library(query.device, query, key_cache, value_cache, first_rows(query.device, sequences), context_lens,
                       block_table, output, counters, parts, sequences, len(key_cache), sequences, block_table.shape[1],
                       heads, kv_heads, head_dim, sm_scale, made.split, made.pack, made.overhead, made.again,
                       made.least, made.trusting, ctas)
        return
    if "together" in config:
        ctas, together = processors(query.device), config["together"]
        rows, size = 8 if heads <= 8 * kv_heads else 16, long_kernel(head_dim, heads // kv_heads)
        floats = 2 * ctas * together * rows * (size + 4)
        counters, parts = workspace(query.device, 3 * ctas, floats).tensors
        if rows > FEW and head_dim >= WIDE:
            wide_library(query.device, query, key_cache, value_cache, None, context_lens, block_table, output, counters,
                         parts, sequences, block_table.shape[1], heads, kv_heads, head_dim, 1, sm_scale, together, ctas)
            return
        stretches = long_library if heads // kv_heads <= FIRST.get(head_dim, 0) else other_library
        stretches(query.device, query, key_cache, value_cache, block_table, context_lens, output, counters, parts,
                  sequences, heads, kv_heads, head_dim, block_table.shape[1], sm_scale, together, ctas)
        return
    library(query.device, query, key_cache, value_cache, block_table, context_lens, output, sequences, heads, kv_heads,
            head_dim, block_table.shape[1], -(-max_context_len // PAGE), sm_scale, config["splits"].bit_length() - 1,
            config["warps"], config["sliced"])
