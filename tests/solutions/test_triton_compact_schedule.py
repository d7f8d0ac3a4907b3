"""triton_compact's division of work among programs, run as plain Python on plain integers.

The bodies of its small Triton functions are executed with a stand-in for triton.language, which is quick enough for
every number of tiles and lets the programs of a split tile arrive in any order (the interpreter knows one only).
"""

import random
import types

import pytest
from moe_cases import solution

MODULE = solution("triton_compact")
PROGRAMS = [1, 2, 3, 7, 64, 132]
K_BLOCKS = [1, 2, 3, 16, 56]


class Number(int):
    """An integer as Triton knows it: comparisons give integers, and it has `to`."""

    def to(self, dtype):
        return self

    def __ne__(self, other):
        return Number(int(self) != other)

    __hash__ = int.__hash__


class Memory(dict):
    """Global memory. Reading an unwritten place is a KeyError."""

    def atomic_add(self, address, value, sem):
        old = self.setdefault(address, 0)
        self[address] = old + value
        return old


def language(program, programs, memory=None):
    """triton.language for the scalar functions, in one program. Values in memory are lists: adding concatenates."""
    return types.SimpleNamespace(
        maximum=max,
        minimum=min,
        where=lambda condition, yes, no: yes if condition else no,
        program_id=lambda axis: program,
        num_programs=lambda axis: programs,
        int32=None,
        range=lambda start, end, **_: map(Number, range(start, end)),
        debug_barrier=lambda: None,
        store=lambda address, value: memory.__setitem__(address, value),
        zeros_like=lambda value: [],
        load=lambda address, cache_modifier: memory[address],
        atomic_add=lambda address, value, sem: memory.atomic_add(address, value, sem),
    )


def python(function, tl, **names):
    """The Triton function as a Python function whose globals are tl and names."""
    return types.FunctionType(function.fn.__code__, {"tl": tl, **names})


def visits_of(program, programs, tiles, k_blocks, split):
    """The work of one program: its visits (tile, first k block, end), and its share."""
    tl = language(program, programs)
    share = python(MODULE._share_work, tl)(tiles, k_blocks, split)
    count, whole, split_from, begin, stretch = share
    visit = python(MODULE._visit, tl)
    return [visit(i, whole, split_from, begin, stretch, k_blocks) for i in range(count)], share


def tile_counts(programs):
    """Around every multiple of the programs up to four, where the division changes, and some in between."""
    near = {multiple * programs + change for multiple in range(5) for change in range(-2, 3)}
    return sorted(count for count in near | {programs // 2, programs * 3 // 2, 8 * programs + 5} if count >= 0)


@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize("k_blocks", K_BLOCKS)
@pytest.mark.parametrize("programs", PROGRAMS)
def test_every_k_block_of_every_tile_is_done_once(programs, k_blocks, split):
    for tiles in tile_counts(programs):
        covered, work = [], []
        for program in range(programs):
            visits, _ = visits_of(program, programs, tiles, k_blocks, split)
            assert all(0 <= begin < end <= k_blocks for _, begin, end in visits)
            assert sum(end - begin != k_blocks for _, begin, end in visits) <= (2 if split else 0)
            covered += [(tile, k) for tile, begin, end in visits for k in range(begin, end)]
            work.append(sum(end - begin for _, begin, end in visits))
        assert sorted(covered) == [(tile, k) for tile in range(tiles) for k in range(k_blocks)]
        # The longest share is at most a k block (split) or a tile (whole) over the mean.
        assert max(work) * programs <= len(covered) + (programs - 1) * (1 if split else k_blocks)


@pytest.mark.parametrize("order", ["first to last", "last to first", "any"])
@pytest.mark.parametrize("k_blocks", K_BLOCKS)
@pytest.mark.parametrize("programs", [1, 2, 3, 7, 64])
def test_the_last_program_of_a_split_tile_sums_its_pieces_in_order(programs, k_blocks, order):
    """No two pieces share a place, each is written before it is read, and all fit into the workspace."""
    shuffle = random.Random(programs * 100 + k_blocks).shuffle
    for tiles in tile_counts(programs):
        # One turn per visit. A program's own visits stay in their order.
        plans = {program: visits_of(program, programs, tiles, k_blocks, True) for program in range(programs)}
        turns = [program for program, (visits, _) in plans.items() for _ in visits]
        if order == "last to first":
            turns.reverse()
        elif order == "any":
            shuffle(turns)
        memory, results, pending = Memory(), {}, {program: list(visits) for program, (visits, _) in plans.items()}
        for program in turns:
            tile, begin, end = pending[program].pop(0)
            _, whole, split_from, start, stretch = plans[program][1]
            if end - begin < k_blocks:
                done, complete = join(
                    program, programs, tile, (begin, end), (split_from, start, stretch), k_blocks, memory
                )
            else:
                done, complete = list(range(k_blocks)), True
            if complete:
                assert tile not in results, "two programs think that they are the last"
                results[tile] = done
        assert results == {tile: list(range(k_blocks)) for tile in range(tiles)}
        arrived = {address: value for address, value in memory.items() if address[0] == "arrived"}
        assert not any(arrived.values()) and all(slot < 2 * programs for _, slot in arrived)
        assert all(address[1] < 2 * programs for address in memory)


class Pointer(tuple):
    """("piece", number, offset): adding moves the offset."""

    def __add__(self, offset):
        return Pointer((*self[:2], self[2] + offset))


class Counters:
    """arrived_ptr: adding an index gives the address of a counter."""

    def __add__(self, index):
        return ("arrived", int(index))


def join(program, programs, tile, k_range, share, k_blocks, memory):
    """_join_pieces by one program, whose piece is the list of its k blocks (of the first product; of the second, their
    negatives). Returns the sum and whether the tile is complete."""
    split_from, start, stretch = share

    def piece_ptrs(partial_ptr, piece, block_m, swap):
        return Pointer(("piece", int(piece), 0))

    tl = language(program, programs, memory)
    store = tl.store

    def store_once(address, value):
        assert isinstance(value, int) or address not in memory, f"{address} is written twice"
        store(address, value)

    tl.store = store_once
    join_pieces = python(MODULE._join_pieces, tl, _piece_ptrs=piece_ptrs)
    first = list(range(*k_range))
    first, second, complete = join_pieces(
        first, [-1 - k for k in first], Number(tile - split_from), start, stretch, None, Counters(), k_blocks, 16, True
    )
    assert second == [-1 - k for k in first]
    return first, complete


@pytest.mark.parametrize("programs, tiles, k_blocks", [(132, 131 * 16, 56), (132, 132 * 28 - 1, 16), (296, 40000, 56)])
def test_numbers_fit_32_bits_at_full_size(programs, tiles, k_blocks):
    for program in (0, programs - 1):
        _, (_, _, _, begin, stretch) = visits_of(program, programs, tiles, k_blocks, True)
        # What _share_work and _join_pieces multiply.
        assert max(begin + stretch, 2 * programs * k_blocks, (programs + 1) * stretch) < 2**31
