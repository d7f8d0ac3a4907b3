"""Authors over all operators, for every GPU and protocol that has rows of operators with an importance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kernelderby.api.counted_workloads import legs_of, ranked_by_importance
from kernelderby.catalog import Catalog, published
from kernelderby.catalog.groups import RowGroup
from kernelderby.errors import DerbyError
from kernelderby.hardware import gpu_id
from kernelderby.page.model.operators import ShownScore
from kernelderby.page.text import rounded, words
from kernelderby.rank.by_importance import Contender
from kernelderby.rank.leads import Leads, leads_on_legs
from kernelderby.report.leads import facts
from kernelderby.roofline import selection
from kernelderby.roofline.recorded import recorded
from kernelderby.rows.measurement import Measurement


def scores(catalog: Catalog, rows: Sequence[Measurement]) -> tuple[ShownScore, ...]:
    """The scores, best first within each group; groups of the newest protocol first."""
    importance = published.importance(catalog.root, catalog.left_out)
    found: list[ShownScore] = []
    groups = selection.group_rows(row for row in rows if row.definition in importance)
    while groups:
        key = selection.choose_group(groups, None, None)
        del groups[key]
        try:
            ranked = ranked_by_importance(
                catalog, partial(recorded, rows, catalog.solutions, key.gpu, key.protocol), catalog.solutions
            )
        except DerbyError:  # no peaks of that GPU, or only rows of removed solutions: no S, so no score
            continue
        found += [_score(key.gpu, key.protocol, each) for each in ranked.contenders]
    return tuple(found)


def protocols(counted: Sequence[RowGroup]) -> dict[str, str]:
    """GPU -> the protocol of its tables over all operators."""
    groups = selection.group_rows(selection.row_counts(counted))
    gpus = sorted({key.gpu for key in groups})
    return {gpu: words(selection.choose_group(groups, gpu, None).protocol) for gpu in gpus}


def leads(catalog: Catalog, rows: Sequence[Measurement]) -> dict[str, tuple[str, ...]]:
    """GPU -> the sentences of `derby rank --summary sentence`. GPUs without a library are left out."""
    try:
        found = leads_on_legs(rows, legs_of(catalog, catalog.definitions, rows), catalog.solutions)
    except DerbyError:
        return {}
    legs: dict[str, list[Leads]] = {}
    for each in found:
        legs.setdefault(gpu_id(each.gpu), []).append(each)
    return {gpu: tuple(map(words, facts(some))) for gpu, some in legs.items()}


def _score(gpu: str, protocol: str, each: Contender) -> ShownScore:
    return ShownScore(
        gpu,
        words(protocol),
        words(each.name),
        rounded(each.share.measured),
        rounded(each.share.everywhere),
        rounded(each.fair.measured),
        rounded(each.fair.everywhere),
        each.share.operators,
        each.share.of_operators,
        rounded(each.share.weight),
        each.shapes,
        each.of_shapes,
    )
