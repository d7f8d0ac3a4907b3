"""Latent decode: which form a call has, with or without blocks: clusters (latent_clusters.cuh) or workers
(latent_attention.cu). Times are estimated in microseconds from sizes that the host knows.

Clusters: times are linear in what a block does in turn and in what all blocks together bring through a multiprocessor:
rounds x (first + more log2(splits) + tile x tiles of a block) + share x (tiles on a multiprocessor - beside). Workers
share out all tiles evenly, so their number decides. The host knows the longest context alone: a batch whose
contexts are all as long and one whose others are half as long in the mean count as equally likely.

Constants: NVIDIA H200, calls as CUDA graphs behind an L2 flush. Tile, share and more of clusters are fitted to 130
drawn sizes, with and without blocks, in up to 11 forms each (2026-11-30, 18:04 UTC: 1 to 128 sequences, 8 to 128
heads, 400 to 65,000 tokens, equal and ragged). Fitted to one half, the chosen forms take 1.6 % longer than the best
timed ones on the other half in the mean, 26 % at worst (2.3 and 29 % before; 1.3 and 27 % if the host knew the
lengths). `first` and `beside` are from 286 sizes of 2026-11-23. Workers, where contexts are cut: from 220 other sizes
in blocks (2026-11-30, 21:10 and 21:14 UTC). By these times the choice between the workers and the clusters that the
model ranks first takes 0.3 % longer than the faster of both in the mean, 24 % at worst; fitted to one half, 0.4 and
0.2 % on the others. No other run has timed this choice.
"""

import importlib
from math import log2

latent_attention = importlib.import_module(f"{__package__}.latent_attention")
SHAPES = [(1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (2, 64), (4, 32), (8, 32)]  # groups of 8 heads, tokens

# (groups of 8 heads, tokens of a tile, one tile a block) -> first, tile, share, more, beside
CLUSTERS = {
    (1, 32, True): (2.67, 1.39, 2.12, 0.0, 0.28),
    (1, 64, True): (4.58, 0.05, 2.01, 0.16, 0.06),
    (1, 16, False): (2.79, 0.84, 0.58, 0.43, 0.15),
    (1, 32, False): (2.99, 1.25, 0.69, 0.40, 0.24),
    (2, 16, False): (3.21, 1.22, 0.82, 0.50, 0.05),
    (2, 32, False): (4.34, 1.74, 0.46, 0.17, 0.23),
    (2, 64, False): (4.96, 2.70, 0.67, 0.04, 0.25),
    (4, 32, False): (6.39, 2.43, 1.45, 0.81, 0.24),
    (8, 32, False): (10.55, 3.84, 2.90, 1.22, 0.12),
}
# Blocks of a cluster -> blocks that an H200's 132 multiprocessors hold at once, one each: clusters stay within a GPC.
# 120 for 4 and 8 is cudaOccupancyMaxActiveClusters'; 15 clusters of 8 leave 7 GPCs for one of 16.
AT_ONCE = {1: 132, 2: 132, 4: 120, 8: 120, 16: 112}
ALONE = {(2, 32), (2, 64), (4, 32), (8, 32)}  # forms with room for one block on a multiprocessor


def rounded(longest):
    """Rounded up to a sixteenth of an octave, so that a growing context does not need a new choice at each step."""
    step = max((1 << max(longest - 1, 1).bit_length()) >> 5, 16)
    return -(-max(longest, 1) // step) * step


def key(query, longest):
    batch, heads, _ = query.shape
    return f"batch={batch} heads={heads} longest<={rounded(longest)}"


def is_one_tile(longest, groups, tokens, splits):
    return groups == 1 and tokens > 16 and splits <= 8 and longest <= splits * tokens


def candidates(query, longest):
    """Ordered by estimated time. groups: of 8 heads in a block; tokens: of a tile; splits: blocks of a cluster that
    share a context. On Hopper also workers."""
    (batch, heads, _), longest = query.shape, rounded(longest)
    processors = latent_attention.multiprocessors(query.device)
    found = []
    for groups, tokens in SHAPES:
        if groups > 1 and 4 * groups >= heads:
            continue
        for splits in (1, 2, 4, 8, 16):
            only_short = (groups, tokens) == (1, 64) and not is_one_tile(longest, groups, tokens, splits)
            if splits >= 2 * -(-longest // tokens) or only_short:
                continue
            time = expected(of_clusters, batch, heads, longest, processors, groups, tokens, splits)
            found.append((time, {"groups": groups, "tokens": tokens, "splits": splits}))
    if latent_attention.on_hopper(query.device):
        found.append((expected(of_workers, batch, heads, longest, processors), {"workers": processors}))
    return [config for _, config in sorted(found, key=lambda one: one[0])]


def expected(estimate, batch, *others):
    """us of a batch of which the host knows no more than the longest context."""
    ragged = (1 + (batch - 1) / 2) / max(batch, 1)
    return (estimate(batch, *others, filled=1) + estimate(batch, *others, filled=ragged)) / 2


def of_clusters(batch, heads, longest, processors, groups, tokens, splits, filled):
    """As kernel.cu takes them. filled: share of the tokens that there would be if all contexts were the longest."""
    first, tile, share, more, beside = CLUSTERS[groups, tokens, is_one_tile(longest, groups, tokens, splits)]
    units, tiles = batch * -(-heads // (8 * groups)), -(-longest // tokens)
    load = filled * units * max(tiles, splits) / processors
    # Rounds of blocks that do not fit at once; blocks of short contexts leave early.
    at_once = processors * AT_ONCE[splits] // 132 if (groups, tokens) in ALONE else processors
    rounds = 1 + filled * (-(-units * splits // at_once) - 1)
    return rounds * (first + more * log2(splits) + tile * -(-tiles // splits)) + share * max(load - beside, 0)


def of_workers(batch, heads, longest, processors, filled):
    """As derby_latent_attention_run: start and end, rows to write, and tiles of 64 tokens, one after the other, that a
    worker has. Contexts too short to be cut go without a second launch; there the cache's bytes count, those beyond 50
    MB at the rate that large batches reach."""
    tiles, rows = filled * batch * -(-longest // 64), -(-min(heads, 64) // 16)
    if longest <= latent_attention.MOST_UNCUT:
        megabytes = tiles * 64 * 1152e-6 * 132 / processors
        return 9.5 + 0.45 * rows + 1.6 * (heads > 64) + min(megabytes, 50) / 2.62 + max(megabytes - 50, 0) / 3.9
    workers = max(processors // -(-heads // 64), 1)
    return 13.7 + 0.94 * rows + 0.7 * (heads > 64) + (2.2 if heads > 64 else 2.61) * tiles / workers
