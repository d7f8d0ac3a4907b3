"""Finds the definition and sizes of a launch, from the operators around it, the rules, and the facts of its step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kernelderby.capture.rules import CaptureRule, RuleMismatch, rules_of
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import Sizes, UnfitDraw, sizes_of
from kernelderby.profile.operators import OperatorCall, tensors

# vLLM: execute_context_2(888)_generation_30(30), and with the sums of the lengths of queries (sq) and of keys (sk):
# execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)
_COUNTS = re.compile(r"execute_context_(\d{1,9})\((\d{1,12})\)_generation_(\d{1,9})\((\d{1,12})\)")
_SUMS = re.compile(
    r"execute_\d{1,9}_context_(\d{1,9})\(sq(\d{1,12})sk(\d{1,12})\w*\)"
    r"_generation_(\d{1,9})\(sq(\d{1,12})sk(\d{1,12})\w*\)"
)
# SGLang: step[DECODE bs=32], step[EXTEND bs=4 toks=8192]
_STEP = re.compile(r"step\[(\w+) bs=(\d{1,9})(?: toks=(\d{1,12}))?")
NAMES = (
    *("context_seqs", "context_tokens", "context_cached"),
    *("generation_seqs", "generation_tokens", "generation_cached"),
)


@dataclass(frozen=True, slots=True)
class MappedCall:
    """A call that matches a definition at these sizes. note: how the two differ, "" if they do not."""

    call: OperatorCall
    definition: Definition
    sizes: Sizes
    uuid: str
    rule: str
    note: str


@dataclass(frozen=True, slots=True)
class UnmappedLaunch:
    """A launch that no rule fits. call: None if no operator was open."""

    call: OperatorCall | None
    reason: str


_Found = tuple[Definition, Sizes, str, str, str]  # a MappedCall without its call


class Mapper:
    """Maps launches to definitions. Remembers its result for equal calls."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[Any, _Found | str] = {}

    def map(self, chain: Sequence[OperatorCall], facts: Mapping[str, Any]) -> MappedCall | UnmappedLaunch:
        """The outermost call that a rule fits. A container is taken only if no call inside it fits."""
        outer: MappedCall | None = None
        refused: UnmappedLaunch | None = None
        for call in chain:
            found = self._of_call(call, facts)
            if isinstance(found, str):
                refused = refused or UnmappedLaunch(call, found)
            elif found is not None:
                mapped = MappedCall(call, *found)
                if not any(rule.entry.container for rule in rules_of(call.name)):
                    return mapped
                outer = outer or mapped
        if outer or refused:
            return outer or refused or UnmappedLaunch(None, "")
        if not chain:
            return UnmappedLaunch(None, "launched outside of any operator")
        inner = next((call for call in reversed(chain) if call.is_shaped), chain[-1])
        return UnmappedLaunch(
            inner, "no operator of the set" if inner.is_shaped else "recorded without shapes (record_shapes=True)"
        )

    def _of_call(self, call: OperatorCall, facts: Mapping[str, Any]) -> _Found | str | None:
        """The match; a text that says why no rule of this operator fits; None if the operator has no rule."""
        candidates = rules_of(call.name)
        if not candidates or not call.operands:
            return None
        key = call.name, call.operands, tuple(sorted(facts.items()))
        if key not in self._known:
            self._known[key] = self._first(candidates, call, facts)
        return self._known[key]

    def _first(self, candidates: Sequence[CaptureRule], call: OperatorCall, facts: Mapping[str, Any]) -> _Found | str:
        reason, needed = "", False  # problems that the user can mend come before sizes that do not fit
        for rule in candidates:
            definition = self._catalog.definitions.get(rule.entry.definition)
            if definition is None:
                reason = reason or f"the set has no {rule.entry.definition}"
                continue
            try:
                values = rule.read(call.operands, facts)
                sizes = _sizes(definition, values, rule)
            except RuleMismatch as problem:
                told = str(problem)
                reason = reason if needed and told != rule.entry.needs else told
                needed = needed or told == rule.entry.needs
                continue
            note = "; ".join(each for each in (_other_type(call, definition, rule), rule.entry.note) if each)
            return definition, sizes, sizes.uuid(definition), rule.entry.id, note
        return reason


def _sizes(definition: Definition, values: Mapping[str, Any], rule: CaptureRule) -> Sizes:
    """The sizes that the definition and the rule's own formulas name. UnfitDraw if a const axis has another size."""
    for axis, size in definition.axes.items():
        if size is not None and values.get(axis, size) != size:
            raise RuleMismatch(f"{axis} is {values[axis]}, and {definition.name} has {size}")
    own = {*definition.axes, *definition.inputs}
    own |= {name for name, formula in rule.entry.sizes.items() if formula.startswith("=") or name.startswith("max_")}
    own |= {"max_context_len"} & rule.entry.values.keys()
    given = {name: value for name, value in values.items() if name in own}
    given |= {axis: size for axis, size in definition.axes.items() if size is not None}
    if any(given.get(axis) == 0 for axis in definition.axes if axis != "bias_rows"):
        raise RuleMismatch("empty")
    try:
        return sizes_of(definition, given)
    except UnfitDraw:
        raise RuleMismatch(f"its sizes break a constraint of {definition.name}") from None


def _other_type(call: OperatorCall, definition: Definition, rule: CaptureRule) -> str:
    """The call's 16-bit type, if the definition has the other one."""
    found = next((each.type for each in tensors(call) if each.type in ("bfloat16", "float16")), "")
    wanted = {spec.dtype for spec in definition.inputs.values()} & {"bfloat16", "float16"}
    return f"{found} here" if found and wanted and found not in wanted else ""


def told(call: OperatorCall) -> str:
    """The sizes of its tensors as text, "888x2880 640x2880", with the type of the first one. Of a list of tensors only
    the first two."""
    kind = next((each.type for each in tensors(call) if each.type), "")
    sizes = [dims for each in call.operands for dims in ([each.dims] if each.dims is not None else each.parts[:2])]
    return " ".join([kind, *("x".join(map(str, dims)) or "1" for dims in sizes[:4])]).strip()


def facts_of(ranges: Sequence[str], context: int | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """name -> number, for the step's prompts and for its decoding sequences: their count, their tokens, and the tokens
    that their attention reads. Unknown facts are absent. ranges: the ranges around the launch. context: tokens of a
    sequence, if the trace does not give them. known: facts of a model."""
    facts = dict(known)
    for name in ranges:
        found = _of_annotation(name)
        if found is None:
            continue
        seqs, tokens, cached, running, drafts, read = found
        cached = tokens if cached is None else cached
        if read is None and running:
            read = None if context is None else running * context
        if cached is not None and read is not None:
            facts |= dict(zip(NAMES, (seqs, tokens, cached, running, drafts, read), strict=True))
    return facts


@lru_cache(maxsize=4096)
def _of_annotation(name: str) -> tuple[int, int, int | None, int, int, int | None] | None:
    if match := _SUMS.search(name):
        seqs, tokens, cached, running, drafts, read = map(int, match.groups())
        return seqs, tokens, cached, running, drafts, read
    if match := _COUNTS.search(name):
        seqs, tokens, running, drafts = map(int, match.groups())
        return seqs, tokens, None, running, drafts, None if running else 0
    if match := _STEP.search(name):
        count = int(match[2])
        if match[1] == "DECODE":
            return 0, 0, 0, count, count, None
        return (count, int(match[3]), None, 0, 0, 0) if match[3] else None
    return None
