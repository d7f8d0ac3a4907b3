"""From the operators around a launch to a definition and its sizes, by the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelderby.capture.rules import CaptureRule, NotThis, rules_of
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import Sizes, Unfit, sizes_of
from kernelderby.profile.operators import OperatorCall, tensors


@dataclass(frozen=True, slots=True)
class Mapped:
    """A call that is a definition at these sizes. note: how the two differ, "" where they do not."""

    call: OperatorCall
    definition: Definition
    sizes: Sizes
    uuid: str
    rule: str
    note: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A launch that no rule fits. call: None where no operator was open. reason: why."""

    call: OperatorCall | None
    reason: str


class Mapper:
    """Remembers what it found for calls that are alike."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[Any, tuple[Definition, Sizes, str, str, str] | str | None] = {}

    def map(self, chain: Sequence[OperatorCall], facts: Mapping[str, Any]) -> Mapped | Refused:
        """The outermost call that a rule fits; a container only where none inside does."""
        outer: Mapped | None = None
        refused: Refused | None = None
        for call in chain:
            found = self._of_call(call, facts)
            if isinstance(found, str):
                refused = refused or Refused(call, found)
            elif found is not None:
                mapped = Mapped(call, *found)
                if not _is_container(call.name):
                    return mapped
                outer = outer or mapped
        if outer or refused:
            return outer or refused or Refused(None, "")
        if not chain:
            return Refused(None, "launched outside of any operator")
        inner = next((call for call in reversed(chain) if call.is_shaped), chain[-1])
        return Refused(inner, "no definition" if inner.is_shaped else "recorded without shapes (record_shapes=True)")

    def _of_call(
        self, call: OperatorCall, facts: Mapping[str, Any]
    ) -> tuple[Definition, Sizes, str, str, str] | str | None:
        """A text says why no rule of this operator fits; None: it has none."""
        candidates = rules_of(call.name)
        if not candidates or not call.operands:
            return None
        key = call.name, call.operands, tuple(sorted(facts.items()))
        if key not in self._known:
            self._known[key] = self._first(candidates, call, facts)
        return self._known[key]

    def _first(
        self, candidates: Sequence[CaptureRule], call: OperatorCall, facts: Mapping[str, Any]
    ) -> tuple[Definition, Sizes, str, str, str] | str:
        reason, needed = "", False  # what the user can mend is told before sizes that do not fit
        for rule in candidates:
            definition = self._catalog.definitions.get(rule.entry.definition)
            if definition is None:
                reason = reason or f"the set has no {rule.entry.definition}"
                continue
            try:
                values = rule.read(call.operands, facts)
                sizes = _sizes(definition, values, rule)
            except NotThis as problem:
                told = str(problem)
                reason = reason if needed and told != rule.entry.needs else told
                needed = needed or told == rule.entry.needs
                continue
            note = "; ".join(each for each in (_other_type(call, definition, rule), rule.entry.note) if each)
            return definition, sizes, sizes.uuid(definition), rule.entry.id, note
        return reason


def _is_container(name: str) -> bool:
    return any(rule.entry.container for rule in rules_of(name))


def _sizes(definition: Definition, values: Mapping[str, Any], rule: CaptureRule) -> Sizes:
    """Only what the definition and the rule's own formulas name. Unfit where a const axis has another size."""
    for axis, size in definition.axes.items():
        if size is not None and values.get(axis, size) != size:
            raise NotThis(f"{axis} is {values[axis]}, and {definition.name} has {size}")
    own = {*definition.axes, *definition.inputs}
    texts = {name for name, formula in rule.entry.sizes.items() if formula.startswith("=") or name.startswith("max_")}
    given = {name: value for name, value in values.items() if name in own or name in texts or name in _generated(rule)}
    given |= {axis: size for axis, size in definition.axes.items() if size is not None}
    if any(given.get(axis) == 0 for axis in definition.axes if axis != "bias_rows"):
        raise NotThis("empty")
    try:
        return sizes_of(definition, given)
    except Unfit:
        raise NotThis(f"its sizes break a constraint of {definition.name}") from None


def _generated(rule: CaptureRule) -> set[str]:
    """Values for generate_inputs that a rule reads as a number."""
    return {name for name in rule.entry.values if name == "max_context_len"}


def _other_type(call: OperatorCall, definition: Definition, rule: CaptureRule) -> str:
    """The call's half precision where the definition has the other one."""
    found = next((each.type for each in tensors(call) if each.type in ("bfloat16", "float16")), "")
    wanted = {spec.dtype for spec in definition.inputs.values()} & {"bfloat16", "float16"}
    return f"{found} here" if found and wanted and found not in wanted else ""


def told(call: OperatorCall) -> str:
    """The sizes of its tensors: "888x2880 640x2880", with the first one's type; of a list's tensors the first two."""
    kind = next((each.type for each in tensors(call) if each.type), "")
    sizes = [dims for each in call.operands for dims in ([each.dims] if each.dims is not None else each.parts[:2])]
    return " ".join([kind, *("x".join(map(str, dims)) or "1" for dims in sizes[:4])]).strip()
