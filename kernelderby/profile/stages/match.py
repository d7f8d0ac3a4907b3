"""Finds the stages whose pattern matches a kernel's name, and defects of the patterns.

A stage is glue if its pattern matches kernels that any torch code launches (elementwise kernels, copies, memsets). Glue
counts only inside an invocation, because the harness around the pipeline launches the same kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelderby.profile.stages.notes import AmbiguousKernel, UnmatchedStage
from kernelderby.rows.measurement import Stage
from kernelderby.store.patterns import Pattern

# A pattern that matches one of these names matches kernels of any torch code.
_ANYBODYS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "[CUDA memcpy Device-to-Device]",
    "[CUDA memset]",
)


class StageMatcher:
    """Stages by kernel name. Several stages may share a pattern (both grouped GEMMs). warnings: all other overlaps."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.warnings: list[AmbiguousKernel] = []
        taken = [0.0]
        self._patterns = [
            [Pattern(f"stage {each.name}: kernels", text, taken) for text in each.kernels] for each in stages
        ]
        self.glue = frozenset(
            index
            for index, patterns in enumerate(self._patterns)
            if any(pattern.search(name) for pattern in patterns for name in _ANYBODYS)
        )
        self.by_range = {stage.nvtx: index for index, stage in enumerate(stages) if stage.nvtx}
        self._cache: dict[str, tuple[tuple[int, ...], str]] = {}

    def candidates(self, name: str) -> tuple[int, ...]:
        """The stages that match the name, in pipeline order: none, one, or all that share the pattern."""
        return self._match(name)[0]

    def pattern(self, name: str) -> str:
        """The pattern that matched; empty without one."""
        return self._match(name)[1]

    def _match(self, name: str) -> tuple[tuple[int, ...], str]:
        found = self._cache.get(name)
        if found is None:
            found = self._cache[name] = self._search(name)
        return found

    def _search(self, name: str) -> tuple[tuple[int, ...], str]:
        hits = [
            (index, pattern.pattern)
            for index, patterns in enumerate(self._patterns)
            for pattern in patterns
            if pattern.search(name)
        ]
        own = [(index, pattern) for index, pattern in hits if index not in self.glue] or hits
        if not own:
            return (), ""
        first = own[0][1]
        sharing = tuple(dict.fromkeys(index for index, pattern in own if pattern == first))
        if others := sorted({self.stages[index].name for index, _ in own} - {self.stages[i].name for i in sharing}):
            counted = tuple(self.stages[index].name for index in sharing)
            self.warnings.append(AmbiguousKernel(name, counted, tuple(others)))
        return sharing, first

    def unmatched(self, names: Iterable[str], ranges: Iterable[str] = ()) -> list[UnmatchedStage]:
        """The stages of which no pattern and no NVTX range matches anything in the profile."""
        names, ranges = list(names), set(ranges)
        warnings = []
        for stage, patterns in zip(self.stages, self._patterns, strict=True):
            if stage.nvtx and stage.nvtx in ranges:
                continue
            if not any(pattern.search(name) for pattern in patterns for name in names):
                warnings.append(UnmatchedStage(stage.name, stage.nvtx, tuple(pattern.pattern for pattern in patterns)))
        return warnings
