"""Kernels of replayed CUDA graphs, and the NVTX ranges in which each was captured.

With --cuda-graph-trace=node a kernel names its node. CUDA_GRAPH_NODE_EVENTS gives the time and thread at which each
node was made, and the node of which it is a copy, since instantiating a graph copies the nodes of its capture. The
ranges that were open when the first node of such a chain was made belong to the operator that launched the kernel.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelderby.profile.operators import OperatorCall, RangeCalls
from kernelderby.profile.sources.sqlite.launches import process_of, read_timelines
from kernelderby.profile.sources.sqlite.rows import or_zero
from kernelderby.profile.sources.sqlite.schema import GRAPH_NODES, Schema

OperationKey = tuple[int, int, int, int]  # process, device, stream, start: no two operations have the same


@dataclass(frozen=True, slots=True)
class GraphOperation:
    """replay: the graph launch that contains it. chain: the operators at its capture, outermost first."""

    replay: int
    chain: tuple[OperatorCall, ...]


def replayed_work(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool
) -> dict[OperationKey, GraphOperation]:
    """Every operation of a graph's node; empty if the export has no nodes."""
    rows: list[tuple[Any, ...]] = []
    process = process_of('"globalPid"') if with_processes else "0"
    for _, _, table in schema.work():
        place = f"{or_zero(table, 'deviceId')}, {or_zero(table, 'streamId')}"
        if {"graphNodeId", "correlationId", "deviceId", "streamId"} <= table.columns:
            rows += connection.execute(
                f'SELECT {process}, {place}, start, "correlationId", "graphNodeId" FROM {table.name} '
                f'WHERE {table.valid} AND "graphNodeId" > 0 ORDER BY start'
            )
    if not rows:
        return {}
    chains = _chains(connection, schema, with_processes)
    replays: dict[tuple[Any, Any], int] = {}
    return {
        (owner, device & 0xFFFF, stream, start): GraphOperation(
            replays.setdefault((owner, correlation), len(replays)), chains.get((owner, node), ())
        )
        for owner, device, stream, start, correlation, node in rows
    }


def _chains(
    connection: sqlite3.Connection, schema: Schema, with_processes: bool
) -> dict[tuple[int, int], tuple[OperatorCall, ...]]:
    """(process, node) -> the operators that were open on its thread when the node was captured."""
    table = schema.table(GRAPH_NODES)
    if table is None or not {"start", "globalTid", "graphNodeId"} <= table.columns:
        return {}
    original = '"originalGraphNodeId"' if "originalGraphNodeId" in table.columns else "NULL"
    process = process_of('"globalTid"') if with_processes else "0"
    events = connection.execute(
        f'SELECT {process}, "graphNodeId", {original}, start, "globalTid" FROM {table.name} '
        "WHERE typeof(start) = 'integer' AND typeof(\"globalTid\") = 'integer' ORDER BY start"
    ).fetchall()
    copied = {(owner, node): (owner, first) for owner, node, first, _, _ in events if first}
    made = {(owner, node): (start, thread) for owner, node, first, start, thread in events if not first}
    timelines, paths = read_timelines(connection, schema)
    calls = RangeCalls()
    captured: dict[tuple[int, int], tuple[OperatorCall, ...]] = {}
    for node, (start, thread) in made.items():
        timeline = timelines.get(thread)
        if timeline is not None:
            captured[node] = calls.chain(thread, paths[int(timeline.at(np.array([start]))[0])])
    return {node: captured.get(_first(node, copied), ()) for node in (*made, *copied)}


def _first(node: tuple[int, int], copied: dict[tuple[int, int], tuple[int, int]]) -> tuple[int, int]:
    """The node of the capture from which it was copied, possibly through several copies."""
    seen = {node}
    while node in copied and copied[node] not in seen:
        node = copied[node]
        seen.add(node)
    return node
