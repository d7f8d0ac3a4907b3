"""Chooses the variant of the bf16 experts (experts_bf16_variants.cuh) for a shape, and whether rows are stored or
added."""

# The variants by their numbers: (pairs a tile at most, whether pairs are wgmma's M, pairs up to which the GEMMs
# sort for themselves, 0: never).
VARIANTS = ((16, False, 512), (64, False, 2048), (128, False, 2048), (192, False, 2048), (64, False, 0),
            (128, False, 0), (160, False, 0), (128, True, 0), (80, False, 1024), (128, True, 2048))
(FEW, SOME_SORTING, MANY_SORTING, MORE_SORTING, SOME, MANY, MORE, WIDE, EIGHTY_SORTING,
 WIDE_SORTING) = range(len(VARIANTS))
STORING = (MANY, MORE, WIDE)  # those whose second GEMM can store by pair


def _order(pairs, num_experts, intermediate):
    """(variants worth trying, whether the second GEMM should store), by the pairs of an expert if all have the same
    number, as measured on an H200 (docs/lab). Float32 rows are added at 2 TB/s; storing costs one more kernel, and
    writing and reading two bytes a value."""
    average = pairs / num_experts
    stores = intermediate < 1024
    if pairs <= VARIANTS[FEW][2] and average <= 8:
        return (FEW, SOME), False
    if pairs <= VARIANTS[SOME_SORTING][2] and (average <= 200 or not stores):
        return _sorting_order(pairs, average, intermediate), False
    if average <= 48:  # from 33 on 128, for routings where a few experts have all pairs; even ones lose 1 %
        return ((SOME, MANY) if average <= 32 else (MANY, SOME)), False
    if average <= 110:
        return (MANY, MORE), stores
    return ((MORE, WIDE) if 140 < average <= 200 else (WIDE, MORE)), stores


def _sorting_order(pairs, average, intermediate):
    """The order of variants that sort for themselves. An expert whose pairs do not fit into one tile costs half as much
    again. So 80 is first if an even routing fits in nine draws of ten, unless skewed routings lose more by three tiles
    instead of two than even ones gain; 192 is first as long as an even routing's largest expert fits."""
    if average <= 32:
        return SOME_SORTING, MANY_SORTING
    if pairs <= VARIANTS[EIGHTY_SORTING][2] and (average <= 40 or (57 <= average <= 64 and intermediate <= 2048)):
        return EIGHTY_SORTING, MANY_SORTING
    if average <= 100:
        return MANY_SORTING, MORE_SORTING
    if average <= 170:
        return MORE_SORTING, MANY_SORTING
    return WIDE_SORTING, WIDE


def tuning_key(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    """Holds the answer of _order() too, which depends on more than the size's power of two."""
    num_experts, hidden, intermediate = down_weight.shape
    tokens, top_k = topk_ids.shape
    order, stores = _order(topk_ids.numel(), num_experts, intermediate)
    bucket = 1 << max(tokens - 1, 0).bit_length()
    return f"e{num_experts} k{top_k} h{hidden} i{intermediate} t<={bucket} v{order[0]}{'s' * stores}"


def candidates(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    num_experts, hidden, intermediate = down_weight.shape
    order, store = _order(topk_ids.numel(), num_experts, intermediate)
    slab = max(-(-hidden // 256) // 4, 1)
    adds = [{"variant": variant, "slab": 0, "stores": 0} for variant in order]
    stores = [{"variant": variant, "slab": 0, "stores": 1} for variant in order if variant in STORING]
    slabs = [{**config, "slab": slab} for config in adds[:1] if hidden % (256 * slab) == 0]
    return [*stores, *adds, *slabs] if store else [*adds, *stores, *slabs]
