"""Facts about a step from the annotation around it: vLLM's, SGLang's, torch.profiler's, our own.

vLLM      execute_context_1(888)_generation_31(31), execute_9_context_9(...)_generation_37(...),
          execute_new_2_cached_31
SGLang    step[DECODE bs=32 toks=32], step[EXTEND bs=15 toks=15360]
PyTorch   ProfilerStep#7
derby     invocation 3
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelderby.store.counts import counted

PREFILL, DECODE, MIXED = "prefill", "decode", "prefill and decode"
_SGLANG_MODES = {"DECODE": DECODE, "EXTEND": PREFILL, "PREFILL": PREFILL, "MIXED": MIXED, "IDLE": "idle"}
_COUNT = r"(?:\([^()]*\))?"
_VLLM = re.compile(rf"^execute_(?:\d+_)?context_(?P<context>\d+){_COUNT}_generation_(?P<generation>\d+){_COUNT}$")
_VLLM_NEW = re.compile(r"^execute_new_(?P<context>\d+)_cached_(?P<generation>\d+)$")
_SGLANG = re.compile(r"^step\[\s*(?P<mode>[A-Z_]+)\s*(?P<rest>[^\]]*)\]")
_PLAIN = re.compile(
    r"^(?P<kind>ProfilerStep|execute_diffusion|train(?:ing)?_step|step|iter(?:ation)?|invocation)\W*_?\d", re.IGNORECASE
)
# In order of preference: a serving step says more than the profiler's schedule around it.
_FORMS = (_SGLANG, _VLLM, _VLLM_NEW, _PLAIN)


@dataclass(frozen=True, slots=True)
class StepName:
    """kind: prefill, decode, ..., or the annotation's own word. requests: prefilled and decoded ones, None if unknown.
    form: number of the spelling above; 0 says most."""

    kind: str
    form: int
    requests: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """ "decode, 32 requests": steps of one title do the same work."""
        if self.requests is None:
            return self.kind
        prefilled, decoded = self.requests
        if prefilled and decoded:
            return f"{self.kind}, {prefilled} + {counted(decoded, 'request')}"
        count = prefilled + decoded
        return f"{self.kind}, {count} request{'s' * (count != 1)}" if count else self.kind


def read_annotation(text: str) -> StepName | None:
    """The step in a range's name; None if the range does not mark a step."""
    if match := _SGLANG.match(text):
        kind = _SGLANG_MODES.get(match["mode"], match["mode"].lower().replace("_", " "))
        size = re.search(r"\bbs=(\d{1,9})\b", match["rest"])
        count = int(size[1]) if size else None
        if count is None or kind not in (PREFILL, DECODE):
            return StepName(kind, 0)
        return StepName(kind, 0, (count, 0) if kind == PREFILL else (0, count))
    for form in (1, 2):
        if match := _FORMS[form].match(text):
            context, generation = int(match["context"][:9]), int(match["generation"][:9])
            kind = MIXED if context and generation else PREFILL if context else DECODE
            return StepName(kind, form, (context, generation))
    if match := _PLAIN.match(text):
        return StepName(match["kind"], 3)
    return None
