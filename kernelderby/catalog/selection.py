"""The workloads that a word or an origin means, the same in every verb; and the workloads that count in a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, combinations, islice

from kernelderby.catalog.model import Workload
from kernelderby.catalog.workloads import FRESH, MODELS, SERVING
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted

_NAMED = 4  # workloads in one message
SCORED = ("survey", "contest")  # origins of published shapes
_MOST_CHOICES = 1 << 12  # of axes for labels: all of a dozen axes; each axis more doubles them


def workload_label(workload: Workload) -> str:
    axes = " ".join(f"{name}={size}" for name, size in workload.axes.items())
    told = "".join(f" {name}={value}" for name, value in workload.generator.items())
    return f"{axes}{told} {workload.uuid[:8]}"


def telling_axes(sizes: Sequence[Mapping[str, object]]) -> list[str]:
    """Variable axes, without those that an earlier axis determines one to one (num_seqs and len_cu_seqlens)."""
    kept: list[str] = []
    for axis in sizes[0] if sizes else ():
        distinct = len({each.get(axis) for each in sizes})
        pairs = [len({(each.get(axis), each.get(other)) for each in sizes}) for other in kept]
        same = [len({each.get(other) for each in sizes}) for other in kept]
        if distinct > 1 and not any(distinct == each == two for each, two in zip(pairs, same, strict=True)):
            kept.append(axis)
    return kept or list(sizes[0] if sizes else ())


def shortest_labels(workloads: Sequence[Workload]) -> dict[str, str]:
    """uuid -> the fewest axes that tell the workloads apart, "m=349, n=2048", or the values for their generators. If
    these are not enough, integer scalars are added, then the start of the uuid."""
    told = dict.fromkeys(name for each in workloads for name in each.generator)
    sizes: list[dict[str, object]] = [
        {**each.axes, **{name: each.generator.get(name, "-") for name in told}} for each in workloads
    ]
    scalars = [{name: size for name, size in each.scalars.items() if type(size) is int} for each in workloads]
    both = [own | more for own, more in zip(sizes, scalars, strict=True)]
    for known in (sizes, both):
        axes = telling_axes(known)
        if _distinct(known, axes) < len(workloads):
            continue
        choices = chain.from_iterable(combinations(axes, count) for count in range(1, len(axes)))
        for chosen in (*islice(choices, _MOST_CHOICES), axes):
            if _distinct(known, chosen) == len(workloads):
                return {each.uuid: _sized(own, chosen) for each, own in zip(workloads, known, strict=True)}
    axes = telling_axes(both)
    found = [_sized(own, axes) for own in both]
    counts = Counter(found)
    return {
        each.uuid: f"{label} {each.uuid[:8]}".strip() if counts[label] > 1 else label
        for each, label in zip(workloads, found, strict=True)
    }


def _distinct(sizes: Sequence[Mapping[str, object]], axes: Sequence[str]) -> int:
    return len({tuple(each.get(axis) for axis in axes) for each in sizes})


def _sized(sizes: Mapping[str, object], axes: Iterable[str]) -> str:
    return ", ".join(f"{axis}={sizes[axis]}" for axis in axes if axis in sizes)


def select_workloads(workloads: Sequence[Workload], wanted: Iterable[str]) -> list[Workload]:
    """The workloads that one of the words names: start of a uuid, size of a var axis, axis=size or scalar=value, #3 or
    shape_id=3. Without words: all. DerbyError for a word that names none.
    """
    wanted = list(wanted)
    chosen = set()
    for word in wanted:
        named = {workload.uuid for workload in workloads if is_named(workload, word)}
        if not named:
            if not workloads:
                raise DerbyError(f"--workloads: no workload {word!r}: the operator has none; add it to workloads/")
            known = ", ".join(workload_label(workload) for workload in workloads[:_NAMED])
            more = f" and {len(workloads) - _NAMED} more (`derby show` lists them)" if len(workloads) > _NAMED else ""
            raise DerbyError(
                f"--workloads: no workload {word!r}; give the start of a uuid or the size of an axis, of: {known}{more}"
            )
        chosen |= named
    return [workload for workload in workloads if not wanted or workload.uuid in chosen]


def select_in_each(known: Mapping[str, Sequence[Workload]], wanted: Sequence[str]) -> dict[str, list[Workload]]:
    """Definition -> its workloads that one of the words names; without words all. DerbyError for a word that names no
    workload of any definition."""
    if len(known) == 1:
        return {name: select_workloads(workloads, wanted) for name, workloads in known.items()}
    for word in wanted:
        if not any(is_named(workload, word) for workloads in known.values() for workload in workloads):
            raise DerbyError(
                f"--workloads: no workload {word!r} in any of {counted(len(known), 'operator')}; `derby show` "
                "lists them"
            )
    return {
        name: [each for each in workloads if not wanted or any(is_named(each, word) for word in wanted)]
        for name, workloads in known.items()
    }


def of_origin(workloads: Sequence[Workload], origins: Collection[str]) -> list[Workload]:
    """The workloads of these origins; without origins all."""
    return [workload for workload in workloads if not origins or workload.origin in origins]


def by_origin(workloads: Sequence[Workload]) -> list[list[Workload]]:
    """The workloads that count in a score, then the others, one list for each origin.

    The published shapes count: the survey's, otherwise the contest's. If a definition has neither, all workloads in its
    file count. So workloads of our own never change a score of published ones. Fresh shapes never count, because nobody
    can list them."""
    scored = next((origin for origin in SCORED if any(each.origin == origin for each in workloads)), None)
    if scored is None:
        fresh = [each for each in workloads if each.origin == FRESH]
        listed = [each for each in workloads if each.origin != FRESH]
        return [part for part in (listed, fresh) if part] or [[]]
    others = sorted({each.origin or "" for each in workloads} - {scored})
    return [[each for each in workloads if (each.origin or "") == origin] for origin in (scored, *others)]


# The sets of shapes for which a lead is computed: the shapes that count in scores, and three further sets.
LEGS = ("", SERVING, MODELS, FRESH)


def by_leg(workloads: Sequence[Workload]) -> dict[str, list[Workload]]:
    """The lists of by_origin() that are one of LEGS. The workloads that count in scores are a leg of their own, unless
    they are one of the other sets, as for a definition without published shapes."""
    found: dict[str, list[Workload]] = {}
    for place, part in enumerate(by_origin(workloads)):
        origins = {each.origin for each in part}
        leg = (origins.pop() or "") if len(origins) == 1 else ""
        if leg in LEGS[1:]:
            found[leg] = part
        elif place == 0 and part:
            found[""] = part
    return found


def is_named(workload: Workload, word: str) -> bool:
    words = {str(size) for size in workload.axes.values()}
    words |= {f"{name}={value}" for name, value in (workload.axes | workload.scalars | workload.generator).items()}
    shape_id = workload.shape_id
    if shape_id is not None:
        words |= {f"#{shape_id}", f"shape_id={shape_id}"}
    return (
        word in words
        # Digits alone may be a size. They are the start of a uuid only if they are as many as labels show.
        or (len(word) >= (8 if word.isdigit() else 4) and workload.uuid.startswith(word))
        or word == workload.uuid
    )
