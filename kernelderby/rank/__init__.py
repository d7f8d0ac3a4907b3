"""Solution against solution on one GPU, from recorded traces. docs/scoring.md says how every number is computed."""

from kernelderby.rank.model import NOT_MEASURED, PASSED, Cell, Pair, Ranking, Summary, WorkloadRow
from kernelderby.rank.ranking import rank
from kernelderby.roofline.selection import Group, definitions_with_rows
from kernelderby.statistics.ratio import Ratio

__all__ = [
    "NOT_MEASURED",
    "PASSED",
    "Cell",
    "Group",
    "Pair",
    "Ranking",
    "Ratio",
    "Summary",
    "WorkloadRow",
    "definitions_with_rows",
    "rank",
]
