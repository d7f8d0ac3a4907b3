"""cuDNN's scaled dot product attention through its frontend: graphs of fixed sizes, lengths and tables on the GPU."""

import functools

import torch

QUERY, KEY, VALUE, OUTPUT, LENGTHS_Q, LENGTHS_K, TABLE_K, TABLE_V, ROWS_Q, ROWS_O, ROWS_K, ROWS_V = range(1, 13)


@functools.cache
def handle(device):
    import cudnn

    return cudnn.create_handle()


@functools.cache
def graph(count, heads, kv_heads, head_dim, longest_q, longest_k, cache, table, causal, sm_scale, device):
    """A built graph and its workspace. cache: shape and strides of paged keys [blocks, kv_heads, tokens, head_dim],
    None where keys lie packed as the queries do. table: shape and strides of the pages' table [count, blocks]."""
    import cudnn

    whole, kind = cudnn.data_type.INT32, cudnn.data_type.BFLOAT16
    made = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT,
                         compute_data_type=cudnn.data_type.FLOAT, handle=handle(device))

    def per_sequence(uid, rows=count):
        return made.tensor(dim=(rows, 1, 1, 1), stride=(1, 1, 1, 1), data_type=whole, uid=uid)

    def packed(uid, own, longest, rows):
        strides = longest * own * head_dim, head_dim, own * head_dim, 1
        return made.tensor(dim=(count, own, longest, head_dim), stride=strides, data_type=kind, uid=uid,
                           ragged_offset=per_sequence(rows, count + 1))

    query = packed(QUERY, heads, longest_q, ROWS_Q)
    paged = {}
    if cache:
        key, value = (made.tensor(dim=cache[0], stride=cache[1], data_type=kind, uid=uid) for uid in (KEY, VALUE))
        for name, uid in (("paged_attention_k_table", TABLE_K), ("paged_attention_v_table", TABLE_V)):
            (rows, columns), (row, column) = table
            paged[name] = made.tensor(dim=(rows, 1, columns, 1), stride=(row, row, column, 1), data_type=whole, uid=uid)
        paged["paged_attention_max_seq_len_kv"] = longest_k
    else:
        key, value = packed(KEY, kv_heads, longest_k, ROWS_K), packed(VALUE, kv_heads, longest_k, ROWS_V)
    output, _ = made.sdpa(
        name="sdpa", q=query, k=key, v=value, generate_stats=False, attn_scale=sm_scale, use_padding_mask=True,
        seq_len_q=per_sequence(LENGTHS_Q), seq_len_kv=per_sequence(LENGTHS_K), use_causal_mask_bottom_right=causal,
        **paged)
    output.set_uid(OUTPUT).set_output(True).set_data_type(kind)
    output.set_dim([count, heads, longest_q, head_dim])
    output.set_stride([longest_q * heads * head_dim, head_dim, heads * head_dim, 1])
    output.set_ragged_offset(per_sequence(ROWS_O, count + 1))
    made.validate()
    made.build_operation_graph()
    made.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    made.check_support()
    made.build_plans()
    return made, torch.empty(max(1, made.get_workspace_size()), dtype=torch.uint8, device=device)


def execute(made, room, tensors, device):
    """Runs it on the current stream."""
    import cudnn

    cudnn.set_stream(handle=handle(device), stream=torch.cuda.current_stream(device).cuda_stream)
    made.execute(tensors, room, handle=handle(device))


class Step:
    """Lengths of a step, and what its layers share of them: lengths of queries, and rows as elements."""

    def __init__(self, bounds_q, lengths=None, bounds_k=None):
        self.bounds_q, self.bounds_k = bounds_q, bounds_k
        self.lengths_q = bounds_q.diff()
        self.lengths_k = lengths if bounds_k is None else bounds_k.diff()
        self.rows = {}

    def rows_of(self, bounds, elements):
        """First element of each sequence, where a row has so many."""
        key = bounds.data_ptr(), elements
        if key not in self.rows:
            self.rows[key] = bounds * elements
        return self.rows[key]


def paged(step, query, key_cache, value_cache, table, longest_q, longest_k, causal, sm_scale, output):
    """query, output [tokens, heads, head_dim], caches [blocks, tokens, kv_heads, head_dim], table [count, blocks]."""
    (_, heads, head_dim), device = query.shape, query.device
    key, value = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    table = table[:, :-(-longest_k // key_cache.shape[1])]
    made, room = graph(
        len(table), heads, key.shape[1], head_dim, longest_q, longest_k, (tuple(key.shape), key.stride()),
        (tuple(table.shape), table.stride()), causal, sm_scale, device)
    rows = step.rows_of(step.bounds_q, heads * head_dim)
    execute(made, room, {
        QUERY: query, KEY: key, VALUE: value, OUTPUT: output, LENGTHS_Q: step.lengths_q, LENGTHS_K: step.lengths_k,
        TABLE_K: table, TABLE_V: table, ROWS_Q: rows, ROWS_O: rows}, device)


def packed(step, query, key, value, longest, sm_scale, output):
    """query, key, value, output [tokens, heads, head_dim], sequence after sequence, each token sees all of its own."""
    (_, heads, head_dim), device = query.shape, query.device
    count, kv_heads = len(step.lengths_q), key.shape[1]
    made, room = graph(count, heads, kv_heads, head_dim, longest, longest, None, None, False, sm_scale, device)
    rows, rows_k = (step.rows_of(bounds, heads * head_dim) for bounds in (step.bounds_q, step.bounds_k))
    execute(made, room, {
        QUERY: query, KEY: key, VALUE: value, OUTPUT: output, LENGTHS_Q: step.lengths_q, LENGTHS_K: step.lengths_k,
        ROWS_Q: rows, ROWS_O: rows, ROWS_K: rows_k, ROWS_V: rows_k}, device)
