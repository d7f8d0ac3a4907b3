"""Estimates how long the forms of latent decode take, in microseconds, from sizes that the host knows.

Clusters (kernel.cu): times are linear in what a block does in turn and in what all blocks together bring through a
multiprocessor: first + more log2(splits) + tile x tiles of a block + share x (tiles of all blocks on a multiprocessor -
beside). Workers (common/latent_attention.cu) share out all tiles evenly, so the size of the cache decides. Constants:
NVIDIA H200, 2026-11-23, calls as CUDA graphs behind an L2 flush, 286 sizes of 8 to 128 heads, 1 to 128 sequences, 60 to
9,000 tokens; fitted by least squares of logarithms, to within 4 to 18 % of a form's time. On these same sizes the
chosen forms take 1.7 % longer than the best timed ones in the mean, and 40 % at worst; other sizes were not measured.
"""

from math import log2

# (groups of 8 heads, tokens of a tile, one tile a block) -> first, tile, share, more, beside
CLUSTERS = {
    (1, 32, True): (2.67, 1.39, 2.12, 0.0, 0.28),
    (1, 64, True): (4.58, 0.05, 2.01, 0.16, 0.06),
    (1, 16, False): (2.79, 0.72, 0.66, 0.51, 0.15),
    (1, 32, False): (2.99, 0.92, 1.13, 0.59, 0.24),
    (2, 16, False): (3.21, 0.93, 1.02, 0.71, 0.05),
    (2, 32, False): (4.34, 0.83, 1.96, 0.61, 0.23),
    (2, 64, False): (4.96, 1.07, 3.25, 0.81, 0.25),
    (4, 32, False): (6.39, 1.57, 2.66, 1.09, 0.24),
    (8, 32, False): (10.55, 3.84, 2.90, 1.22, 0.12),
}


def of_clusters(batch, heads, longest, groups, tokens, splits, processors):
    """As derby_mla_decode_attention_sm90_run takes them."""
    one_tile = groups == 1 and tokens > 16 and splits <= 8 and longest <= splits * tokens
    first, tile, share, more, beside = CLUSTERS[groups, tokens, one_tile]
    units, tiles = batch * -(-heads // (8 * groups)), -(-longest // tokens)
    load = units * max(tiles, splits) / processors
    # Rounds of blocks that do not fit at once; without this term estimates were up to three times too low there.
    rounds = -(-units * splits // processors)
    return rounds * (first + more * log2(splits) + tile * -(-tiles // splits) + share * max(load - beside, 0))


def of_workers(batch, heads, longest, processors):
    """As derby_latent_attention_run: start and end, rows to write, two CTAs a tile, the cache. Bytes of the cache
    beyond 50 MB count at the rate that large batches reach."""
    megabytes = batch * -(-longest // 64) * 64 * 1152e-6 * 132 / processors
    memory = min(megabytes, 50) / 2.62 + max(megabytes - 50, 0) / 3.9
    return 11.5 + 0.45 * -(-min(heads, 64) // 16) + 1.6 * (heads > 64) + memory
