"""Shared by operators on rows: tiles of rows in registers, and how a configuration is chosen and launched.

A row [COLUMNS] is read once, in CHUNKS pieces of CHUNK columns, kept in registers as a tuple of tensors [ROWS, CHUNK],
reduced and written. CHUNK decides how many threads share a row: with 16-byte accesses of 2-byte numbers a warp holds
256 columns, so a row of 2048 in pieces of 256 needs no barrier at all, while in one piece of 2048 it needs eight warps.
COLUMNS that are not a power of two (1152 = 9 * 128, 5120 = 5 * 1024) waste no lane if CHUNK divides them. A row of more
than MOST_PARTS pieces stays in memory: it is read once to be reduced, and once more, mostly from the second-level
cache, to be written.

A configuration is a dict:
    rows, chunk    the tile of one program; rows = 0: `chunk` numbers of the output, wherever rows begin and end
    warps          of one program
    stages         0: a program takes one tile, the grid covers all. Otherwise a program takes every n-th tile, and with
                   2 or more its loads run that many tiles ahead, through shared memory
    per_sm         programs for each multiprocessor where stages > 0
    stream         what asks to leave the second-level cache first: "", "loads" (results stay there for the kernel that
                   reads them, the more of them the less was kept of what is read once), or "both"
"""

import functools
from math import ceil, log2

import torch
import triton
import triton.language as tl

VECTOR = 8  # 2-byte numbers of one 16-byte access
WARP = 32 * VECTOR  # columns that a warp reads at once
MOST_VECTORS = 9  # of one thread and one tensor; with more, registers run out
MOST_PARTS = tl.constexpr(9)  # of a row in registers
THREADS = 1536  # of a multiprocessor, about what fits with 40 registers each
AT_ONCE = 64 * 1024  # bytes that a multiprocessor has on their way; with fewer, latency is the limit
MOST = 12  # candidates of one shape
WARP_COUNTS = (1, 2, 4, 8, 16)
CHUNKS = (128, 256, 512, 1024, 2048, 4096)


# On the GPU ----------------------------------------------------------------------------------------------------------

@triton.jit
def load_part(pointer, part: tl.constexpr, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
              CHUNK: tl.constexpr, STREAM: tl.constexpr):
    """Columns [part * CHUNK, (part + 1) * CHUNK) of ROWS rows that begin at pointer, STRIDE apart: [ROWS, CHUNK] in
    the pointer's type, zero outside the row and from row `rows_left` on."""
    return _load(pointer, part, rows_left, COLUMNS, STRIDE, ROWS, CHUNK, STREAM, (part + 1) * CHUNK > COLUMNS)


@triton.jit
def load_tile(pointer, chunk, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
              CHUNK: tl.constexpr, STREAM: tl.constexpr):
    """load_part of a part whose number is known only at run time."""
    return _load(pointer, chunk, rows_left, COLUMNS, STRIDE, ROWS, CHUNK, STREAM, COLUMNS % CHUNK != 0)


@triton.jit
def store_part(pointer, values, part: tl.constexpr, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
               ROWS: tl.constexpr, CHUNK: tl.constexpr, STREAM: tl.constexpr):
    """The reverse of load_part; values are rounded to the pointer's type."""
    _store(pointer, values, part, rows_left, COLUMNS, STRIDE, ROWS, CHUNK, STREAM, (part + 1) * CHUNK > COLUMNS)


@triton.jit
def store_tile(pointer, values, chunk, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
               CHUNK: tl.constexpr, STREAM: tl.constexpr):
    """store_part of a part whose number is known only at run time."""
    _store(pointer, values, chunk, rows_left, COLUMNS, STRIDE, ROWS, CHUNK, STREAM, COLUMNS % CHUNK != 0)


@triton.jit
def _load(pointer, chunk, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
          CHUNK: tl.constexpr, STREAM: tl.constexpr, RAGGED: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    policy: tl.constexpr = "evict_first" if STREAM != "" else ""
    if RAGGED:
        inside = (row < rows_left) & (column < COLUMNS)
        values = tl.load(pointer + (row * STRIDE + column), mask=inside, other=0.0, eviction_policy=policy)
    elif ROWS > 1:
        inside = (row < rows_left) & (column >= 0)
        values = tl.load(pointer + (row * STRIDE + column), mask=inside, other=0.0, eviction_policy=policy)
    else:  # a program has at least one row
        values = tl.load(pointer + (row * STRIDE + column), eviction_policy=policy)
    return values


@triton.jit
def _store(pointer, values, chunk, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
           CHUNK: tl.constexpr, STREAM: tl.constexpr, RAGGED: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    policy: tl.constexpr = "evict_first" if STREAM == "both" else ""
    rounded = values.to(pointer.dtype.element_ty)
    if RAGGED:
        inside = (row < rows_left) & (column < COLUMNS)
        tl.store(pointer + (row * STRIDE + column), rounded, mask=inside, eviction_policy=policy)
    elif ROWS > 1:
        inside = (row < rows_left) & (column >= 0)
        tl.store(pointer + (row * STRIDE + column), rounded, mask=inside, eviction_policy=policy)
    else:
        tl.store(pointer + (row * STRIDE + column), rounded, eviction_policy=policy)


@triton.jit
def load_rows(pointer, rows_left, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
              STREAM: tl.constexpr):
    """ROWS rows in float32: a tuple of [ROWS, CHUNK]."""
    parts = ()
    for part in tl.static_range((COLUMNS + CHUNK - 1) // CHUNK):
        values = load_part(pointer, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK, STREAM)
        parts = parts + (values.to(tl.float32),)
    return parts


@triton.jit
def load_vector(pointer, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """A weight [COLUMNS], repeated for each row of the tile, in the pointer's type. Threads hold the same columns as in
    load_rows, so nothing is exchanged; all reads but the first come from the first-level cache."""
    parts = ()
    for part in tl.static_range((COLUMNS + CHUNK - 1) // CHUNK):
        parts = parts + (load_part(pointer, part, ROWS, COLUMNS, 0, ROWS, CHUNK, ""),)
    return parts


@triton.jit
def is_wide(COLUMNS: tl.constexpr, CHUNK: tl.constexpr):
    """Whether a row stays in memory."""
    return (COLUMNS + CHUNK - 1) // CHUNK > MOST_PARTS


@triton.jit
def load_wide(pointer, part, rows_left, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
              CHUNK: tl.constexpr):
    """load_tile in float32, of a row that is read again."""
    return load_tile(pointer, part, rows_left, COLUMNS, STRIDE, ROWS, CHUNK, "").to(tl.float32)


@triton.jit
def wide_sum_of_squares(pointer, rows_left, COLUMNS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """[ROWS] of rows in memory."""
    total = tl.zeros([ROWS, CHUNK], tl.float32)
    for part in tl.range((COLUMNS + CHUNK - 1) // CHUNK):
        x = load_wide(pointer, part, rows_left, COLUMNS, COLUMNS, ROWS, CHUNK)
        total += x * x
    return tl.sum(total, 1)


@triton.jit
def add(left, right, COUNT: tl.constexpr):
    parts = ()
    for part in tl.static_range(COUNT):
        parts = parts + (left[part] + right[part],)
    return parts


@triton.jit
def multiply(left, right, COUNT: tl.constexpr):
    """right may be a weight, in its own type."""
    parts = ()
    for part in tl.static_range(COUNT):
        parts = parts + (left[part] * right[part].to(tl.float32),)
    return parts


@triton.jit
def centre(parts, COLUMNS: tl.constexpr, COUNT: tl.constexpr, CHUNK: tl.constexpr):
    """The rows minus their means; values behind the end of a row stay zero."""
    total = parts[0]
    for part in tl.static_range(1, COUNT):
        total += parts[part]
    mean = (tl.sum(total, 1) / COLUMNS)[:, None]
    centred = ()
    for part in tl.static_range(COUNT):
        values = parts[part] - mean
        if (part + 1) * CHUNK > COLUMNS:
            column = part * CHUNK + tl.arange(0, CHUNK)[None, :]
            values = tl.where(column < COLUMNS, values, 0.0)
        centred = centred + (values,)
    return centred


@triton.jit
def silu(x):
    """x * sigmoid(x); NaN at minus infinity, like the product."""
    return x / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def sum_of_squares(parts, COUNT: tl.constexpr):
    """[ROWS] of a tuple of COUNT [ROWS, CHUNK]."""
    total = parts[0] * parts[0]
    for part in tl.static_range(1, COUNT):
        total += parts[part] * parts[part]
    return tl.sum(total, 1)


@triton.jit
def largest_magnitude(parts, COUNT: tl.constexpr):
    """[ROWS] of a tuple of COUNT [ROWS, CHUNK] float32. NaN if a row holds one: the bits without the sign are compared;
    their order is that of the magnitudes, with NaN above infinity."""
    largest = magnitude(parts[0])
    for part in tl.static_range(1, COUNT):
        largest = tl.maximum(largest, magnitude(parts[part]))
    return tl.max(largest, 1).to(tl.float32, bitcast=True)


@triton.jit
def magnitude(values):
    """float32 -> integers of the order of the magnitudes, NaN above infinity."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def fp8_scale(largest, eps):
    """[ROWS] largest magnitudes -> the scale of e4m3 codes and the factor that turns values into codes. NaN stays."""
    largest = tl.maximum(largest, eps, propagate_nan=tl.PropagateNan.ALL)
    return largest * (1.0 / 448.0), 448.0 / largest


@triton.jit
def store_scales(pointer, scales, rows_left, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    tl.store(pointer + row, scales, mask=row < rows_left)


# On the host ---------------------------------------------------------------------------------------------------------

@functools.cache
def _device(index):
    """(name, multiprocessors) of a GPU; for the CPU, where Triton interprets, a number small enough to reach every
    branch."""
    if index is None:
        return "CPU", 2
    properties = torch.cuda.get_device_properties(index)
    return properties.name, properties.multi_processor_count


def multiprocessors(tensor):
    return _device(tensor.device.index if tensor.is_cuda else None)[1]


def up_to(number):
    """The power of two that bounds a bucket of sizes."""
    return 1 << max(0, number - 1).bit_length()


def middle(rows):
    """The number that stands for all numbers of rows with the same up_to(), so that a tuning key has one list of
    candidates."""
    return max(1, 3 * up_to(rows) // 4) if rows else 0


def launch(kernel, config, rows, tiles_of_a_row, tensors, scalars, **constants):
    """One launch over `rows` rows, with the first tensor's device as the current one; none if there is no row. A grid
    has up to 2^31 - 1 programs in this dimension; kernels must widen offsets beyond 2^31 numbers themselves."""
    if config["rows"]:
        tiles = triton.cdiv(rows, config["rows"]) * tiles_of_a_row
    else:
        tiles = triton.cdiv(rows * constants["COLUMNS"], config["chunk"])
    if tiles == 0 or constants["COLUMNS"] == 0:
        return
    if config["stages"]:
        tiles = min(tiles, config["per_sm"] * multiprocessors(tensors[0]))
    kernel[(tiles,)](*tensors, *scalars, **constants, ROWS=config["rows"], CHUNK=config["chunk"],
                     STREAM=config["stream"], STAGES=config["stages"], num_warps=config["warps"])


def row_candidates(rows, columns, sm_count, tensors=1, held=0):
    """Configurations for operators that reduce rows, best guess first. tensors: inputs that are read together; held:
    tensors that are in registers together, if these are more."""
    rows, columns, held = middle(rows), max(columns, 1), max(held, tensors)
    tiles = []
    for chunk in CHUNKS:
        chunks = -(-columns // chunk)
        if chunks > MOST_VECTORS or chunk >= 2 * max(CHUNKS[0], up_to(columns)):
            continue
        for warps in WARP_COUNTS:
            if max(1, chunk // WARP) <= warps <= max(4, chunk // WARP):
                together = max(1, warps * WARP // chunk)  # rows that a program's threads cover at once
                tiles += [(chunk, warps, together * repeat, chunks * repeat) for repeat in (1, 2, 4, 8)
                          if repeat == 1 or (warps <= 4 and chunks * repeat * held <= MOST_VECTORS)]
    if not tiles:  # rows stay in memory: measurements of rows in registers say nothing about these
        return [{"rows": 1, "chunk": chunk, "warps": warps, "stages": 0, "per_sm": 0, "stream": "", "wide": 1}
                for chunk, warps in ((4096, 16), (4096, 8), (2048, 8), (2048, 4))]
    return _configurations(tiles, rows, columns, sm_count, tensors, held, False)


def map_candidates(rows, columns, sm_count, tensors=1, flat=False):
    """Configurations for operators without a reduction: a program takes `chunk` columns of `rows` rows, with chunks
    that divide the columns if there are any. flat: the kernel also takes tiles across the ends of rows."""
    columns = max(columns, 1)
    fitting = [chunk for chunk in CHUNKS if chunk <= WARP_COUNTS[3] * WARP * max(1, MOST_VECTORS // tensors)]
    idle = {chunk: -columns % chunk for chunk in fitting}
    least = min(idle.values())
    chunks = [chunk for chunk in fitting if idle[chunk] == least or least and idle[chunk] <= columns // 8]
    rows = middle(rows)
    large = rows * columns * tensors * 2 > sm_count * AT_ONCE
    accesses = (0.5, 1) if tensors > 2 else (1, 2, 4, 8)  # of 16 bytes, of a thread and tensor
    tiles = [(chunk, warps, int(vectors * warps * WARP) // chunk, vectors)
             for chunk in chunks for warps in WARP_COUNTS[:4] for vectors in accesses
             if chunk <= vectors * warps * WARP <= 64 * chunk and vectors * tensors <= max(tensors, MOST_VECTORS)
             and (not large or vectors * warps * (tensors + 1) >= 12)]  # 6 KiB moved
    if not (flat and large):
        found = _configurations(tiles, rows, columns, sm_count, tensors, tensors, True)
        narrow = {**min(found, key=lambda config: (config["chunk"], -config["warps"])), "stream": "both"}
        return found + [narrow] * (large and narrow not in found)
    # Tiles within rows do best with 64 bytes a thread and tensor; smaller tiles may as well cross the ends of rows.
    found = _configurations([tile for tile in tiles if tile[3] == 4], rows, columns, sm_count, tensors, tensors, True)
    across = [{"rows": 0, "chunk": vectors * warps * WARP, "warps": warps, "stages": 0, "per_sm": 0, "stream": ""}
              for warps, vectors in ((4, 1), (8, 1), (4, 2), (1, 4))]
    across += [{**across[0], "stream": "loads"}, {**across[2], "stream": "loads"}]
    extra = [config for config in found if config["stream"] or config["stages"]]
    wide = {**across[0], "rows": 4 * 4 * WARP // max(chunks), "chunk": max(chunks)}  # the longest pieces of rows
    return found[:3] + [wide] * (wide not in found[:3]) + across + extra[1:]


def row_cost(config, rows, columns, sm_count, tensors=1, held=0):
    """log2 of the expected time of a configuration of row_candidates(), up to a constant of the shape. None for a
    configuration of another kernel."""
    return _cost(config, rows, columns, sm_count, tensors, max(held, tensors), False)


def map_cost(config, rows, columns, sm_count, tensors=1):
    """The same of map_candidates()."""
    if config.get("rows") == 0:  # across the ends of rows: all of them are one
        return _cost({**config, "rows": 1}, 1, max(rows, 1) * columns, sm_count, tensors, tensors, True)
    return _cost(config, rows, columns, sm_count, tensors, tensors, True)


def _cost(config, rows, columns, sm_count, tensors, held, split):
    if "chunk" not in config:
        return None
    if config.get("wide"):
        return 0.0
    rows, columns = max(rows, 1), max(columns, 1)
    chunk, parts = config["chunk"], 1 if split else -(-columns // config["chunk"])
    vectors = config["rows"] * parts * chunk / (config["warps"] * WARP)
    rank = _large if rows * columns * tensors * 2 > sm_count * AT_ONCE else _small
    tile = chunk, config["warps"], config["rows"], vectors
    # For the rest it is known only when it is worth trying (_configurations), not how much it gains.
    rest = 0.02 * (config["stream"] != "") + 0.02 * (config["stages"] > 0)
    return rank(tile, rows, columns, sm_count, tensors, held, split) + rest


def _configurations(tiles, rows, columns, sm_count, tensors, held, split):
    """tiles: (chunk, warps, rows, 16-byte vectors of a thread and tensor). The best ones by _small or _large, some also
    streaming and, where they may gain by it, persistent. split: a row's chunks go to different programs."""
    read = rows * columns * tensors * 2  # bytes
    rank = _large if read > sm_count * AT_ONCE else _small

    def cost(tile):
        return rank(tile, rows, columns, sm_count, tensors, held, split)

    best = sorted(tiles, key=cost) if rows else tiles[:1]
    same_chunk = [sum(other[0] == tile[0] for other in best[:place]) for place, tile in enumerate(best)]
    # Two of each chunk come first: tiles of one chunk cost nearly the same, and another chunk may be better than the
    # model says.
    best = [tile for _, tile in sorted(zip(same_chunk, best, strict=True), key=lambda pair: pair[0] // 2)]
    plain = [{"rows": tile_rows, "chunk": chunk, "warps": warps, "stages": 0, "per_sm": 0, "stream": ""}
             for chunk, warps, tile_rows, _ in best]
    if read <= sm_count * AT_ONCE / 6:
        return plain[:MOST - 4] + [{**config, "stream": "loads"} for config in plain[:2]]
    streaming = [{**config, "stream": "loads"} for config in plain[:2]] + [{**plain[0], "stream": "both"}]
    persistent = []
    if 0.5 < read / (sm_count * AT_ONCE) < 10:
        persistent = _persistent(sorted(tiles, key=cost), rows, columns, sm_count, held, split)
    extra = streaming + persistent
    return plain[:MOST - len(extra)] + extra


def _persistent(tiles, rows, columns, sm_count, held, split):
    """tiles: best first. The choices that were fastest for some shape: one warp a program, and four with few and with
    many accesses of a thread. As many programs as the registers of the GPU hold at a time."""
    fitting = [tile for tile in tiles if 3 <= tile[3] * held <= MOST_VECTORS]
    single = [tile for tile in fitting if tile[1] == 1][:1]
    few = sorted((tile for tile in fitting if tile[1] == 4), key=lambda tile: tile[3])[:1]
    many = sorted((tile for tile in fitting if tile[1] == 4), key=lambda tile: -tile[3])[:1]
    found = []
    for (chunk, warps, tile_rows, vectors), stages in [*((tile, 3) for tile in single + few),
                                                       *((tile, 2) for tile in many)]:
        per_sm = int(max(1, min(32, 2048 // (32 + 10 * vectors * held)) // warps))
        if rows / tile_rows * (columns / chunk if split else 1) > per_sm * sm_count:
            found.append({"rows": tile_rows, "chunk": chunk, "warps": warps, "stages": stages, "per_sm": per_sm,
                          "stream": ""})
    return found


def _small(tile, rows, columns, sm_count, tensors, held, split):
    """For shapes whose rows can all be on their way at once: one access a thread as long as there are enough threads,
    then as many as needed."""
    chunk, warps, tile_rows, vectors = tile
    wanted = min(max(rows * columns / VECTOR / (sm_count * THREADS), 1), max(1, 8 / held))
    masked = 3 if rows > sm_count else 1  # the weight of an octave of idle lanes
    programs = rows / tile_rows * (columns / chunk if split else 1)
    idle = max(0.0, log2(min(tile_rows, sm_count / programs))) if tile_rows > 1 and programs < sm_count else 0.0
    scattered = log2(CHUNKS[-1] / chunk) / 5 if split else 0.0
    return (abs(log2(vectors / wanted)) + masked * log2(-(-columns // chunk) * chunk / columns)
            + abs(log2(warps / 4)) / 3 + idle + scattered)


def _large(tile, rows, columns, sm_count, tensors, held, split):
    """log2 of the time over that of the memory, fitted to times of ten operators on an H200 (docs/lab/memory_bound.md).
    The smallest tile is best, since the last wave and the barriers then cost least, until programs end faster than new
    ones are started or too few bytes are on their way."""
    chunk, warps, tile_rows, vectors = tile
    traffic = 2 * (tensors + 1) * tile_rows * (chunk if split else columns)  # bytes of a program
    resident = min(32, max(1, min(64, 2048 // (20 + 9 * vectors * held)) // warps))  # programs of a multiprocessor
    waves = rows / tile_rows * (columns / chunk if split else 1) / (resident * sm_count)
    started = 33 * sm_count * (0.32 + 0.34 * warps) / traffic  # its time to start over its time to move bytes
    cost = log2(max(1.0, started)) + 0.015 * max(0.0, log2(traffic / 4400)) + 0.05 * log2(max(1.0, ceil(waves) / waves))
    cost += 0.3 * max(0.0, log2(34e3 / (resident * warps * WARP * 2 * vectors * tensors)))
    cost += 1.4 * log2(-(-columns // chunk) * chunk / columns) + 0.04 * max(0.0, log2(vectors * held / 10))
    return cost + (0.01 * log2(CHUNKS[-1] / chunk) if split else 0.017 * max(0.0, log2(chunk / WARP)))
