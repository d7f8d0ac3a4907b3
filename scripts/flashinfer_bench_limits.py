#!/usr/bin/env python3
"""Which rows flashinfer-bench's `report best` and `apply` accept: a table in docs/flashinfer_bench.md, by its code.

python scripts/flashinfer_bench_limits.py            # writes the table
python scripts/flashinfer_bench_limits.py --check    # exit code 1 when it is stale
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from flashinfer_bench.apply import ApplyConfig
from flashinfer_bench.data import EvaluationStatus, Trace, TraceSet

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "flashinfer_bench.md"
BLOCK = re.compile(r"(<!-- python scripts/flashinfer_bench_limits.py -->\n).*?(<!-- /python -->)", re.DOTALL)


def table(root: Path) -> str:
    """One line a definition that has rows."""
    found, defaults = TraceSet.from_path(str(root)), ApplyConfig()
    lines = [
        "| definition | workloads measured | `report best` | `apply` | why not all |",
        "| :-- | --: | --: | --: | :-- |",
    ]
    for name in sorted(found.definitions):
        passed = [each for each in found.traces.get(name, []) if each.evaluation.status is EvaluationStatus.PASSED]
        best, applied = found.filter_traces(name), found.filter_traces(name, defaults.max_atol, defaults.max_rtol)
        assert (found.get_best_trace(name) is not None) == bool(best)
        counts = [len({each.workload.uuid for each in rows}) for rows in (passed, best, applied)]
        if passed:
            lines.append(f"| `{name}` | {counts[0]} | {counts[1]} | {counts[2]} | {reason(passed, counts)} |")
    return "\n".join(lines) + "\n"


def reason(passed: list[Trace], counts: list[int]) -> str:
    """The largest errors among the rows nearest to the reference, one for each workload."""
    if counts[0] == counts[2]:
        return ""
    nearest: dict[str, tuple[float, float]] = {}
    for each in passed:
        correct = each.evaluation.correctness
        errors = (correct.max_absolute_error, correct.max_relative_error)
        nearest[each.workload.uuid] = min(nearest.get(each.workload.uuid, errors), errors, key=max)
    absolute, relative = (max(errors[place] for errors in nearest.values()) for place in (0, 1))
    return f"absolute error up to {absolute:.2g}, relative up to {relative:.2g}"


def main() -> None:
    before = PAGE.read_text(encoding="utf-8")
    made = table(ROOT)
    after = BLOCK.sub(lambda match: match[1] + made + match[2], before)
    if after == before:
        return
    if "--check" in sys.argv[1:]:
        sys.exit(f"{PAGE}: the table is stale; run python scripts/flashinfer_bench_limits.py")
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
