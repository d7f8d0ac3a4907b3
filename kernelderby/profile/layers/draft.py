"""Drafts a layer map: finds the period of the kernels, makes its kernels modules, and writes a map to be corrected.
Modules take their names from the trace's nn.Module events, if it has any, otherwise from their kernels' roles.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.layers.map import LayerMap, parse_map
from kernelderby.profile.names import normal_form, split
from kernelderby.profile.spans import Profile, Span, SpanKind
from kernelderby.profile.steps.period import LEAST, Period, layer_period
from kernelderby.store.counts import counted

DRAFT = "draft"  # the name of a map that nobody has written yet
RARE = 0.05  # share of the repetitions that must have a kernel at a place, for the kernel to be part of the layer
_PREFIX = 80  # letters of a name in a pattern; generated names have their tile after that
_MODULE = re.compile(r"^nn\.Module: (?P<kind>.+?)_(?P<number>\d+)$")
_FEED = {Role.ROUTING: "experts", Role.GROUPED_GEMM: "experts"}


@dataclass(frozen=True, slots=True)
class _KernelOfLayer:
    name: str
    modules: tuple[str, ...]  # kinds of the nn.Modules inside the layer around it, outermost first
    layer: str = ""  # kind of the nn.Module that forms the layer


@dataclass(frozen=True, slots=True)
class Draft:
    """data: the contents of the map's file. how: one line about its origin."""

    data: dict[str, Any]
    how: str

    def layer_map(self, path: Path) -> LayerMap:
        return parse_map(DRAFT, self.data, path)

    def text(self) -> str:
        """The text of a layer map's file."""
        lines = [f"# {self.how}", "# Names and groups are a draft: correct them.", ""]
        lines += [f"title = {json.dumps(self.data['title'])}", f"layers = {self.data['layers']}"]
        for module in self.data["modules"]:
            lines += ["", "[[modules]]", *(f"{key} = {json.dumps(module[key])}" for key in ("group", "name"))]
            lines.append("kernels = [")
            for kernel in module["kernels"]:
                fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in kernel.items())
                lines.append(f"    {{ {fields} }},")
            lines.append("]")
        return "\n".join(lines) + "\n"

    def stages_text(self) -> str:
        """The same as stages, one per module: the text of a file for `derby profile stages --stages`."""
        lines = [f"# {self.how}", "# Names are a draft: correct them."]
        seen: Counter[str] = Counter()
        for module in self.data["modules"]:
            seen[module["name"]] += 1
            name = module["name"] if seen[module["name"]] == 1 else f"{module['name']} {seen[module['name']]}"
            patterns = [kernel["match"] for kernel in module["kernels"]]
            lines += ["", "[[stages]]", f"name = {json.dumps(name)}", f"title = {json.dumps(module['group'])}"]
            lines.append(f"kernels = {json.dumps(list(dict.fromkeys(patterns)))}")
        return "\n".join(lines) + "\n"


def draft_of(profile: Profile) -> Draft:
    """DerbyError if no layer repeats, or the profile has sums only."""
    if not profile.has_events:
        raise DerbyError(
            f"{profile.path}: {profile.form} has sums only, so no layer can be found in it; give --map, or events"
        )
    kernels = _main_stream(profile)
    period = _period([kernel.name for kernel in kernels])
    if period is None:
        raise DerbyError(f"{profile.path}: no layer was found, nothing repeats in most of its kernels; give --map")
    places = _consensus(kernels, period)
    places = _rotated(places)
    layers, named = _layers(kernels, period)
    how = (
        f"Found in {profile.path.name}: {counted(period.length, 'kernel')} that repeat "
        f"{counted(period.repetitions, 'time')} in a row "
        f"({period.match:.0%} alike)" + (f"; {named}" if named else "")
    )
    title = f"{named.partition(' ')[0] or 'Layer'}, a draft from {profile.path.name}"
    return Draft({"title": title, "layers": layers, "modules": _modules(places)}, how)


def longest_run(profile: Profile) -> int | None:
    """The number of consecutive layers, by their period; None if nothing repeats."""
    period = _period([span.name for span in _main_spans(profile)])
    return period.repetitions if period else None


def _period(texts: Sequence[str]) -> Period | None:
    numbers: dict[str, int] = {}
    names = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return layer_period(names) if len(names) else None


def _main_spans(profile: Profile) -> list[Span]:
    """The kernels of the stream with most kernels."""
    spans = [span for span in profile.spans() if span.kind is SpanKind.KERNEL]
    streams = Counter((span.process, span.device, span.stream) for span in spans)
    main = streams.most_common(1)[0][0] if streams else None
    return [span for span in spans if (span.process, span.device, span.stream) == main]


def _main_stream(profile: Profile) -> list[_KernelOfLayer]:
    """The kernels of _main_spans, each with the nn.Modules around its launch."""
    paths = profile.modules()
    if not paths:
        return [_KernelOfLayer(span.name, ()) for span in _main_spans(profile)]
    around = {id(span): path for span, path in zip(profile.spans(), paths, strict=True)}
    layer = _layer_kind(paths)
    return [_KernelOfLayer(span.name, *_below(around.get(id(span), ()), layer)) for span in _main_spans(profile)]


def _layer_kind(paths: Sequence[tuple[str, ...]]) -> str:
    """The kind of nn.Module that contains most of the work, among kinds with several instances; of equal ones the
    outermost. "" without any."""
    instances: dict[str, set[str]] = {}
    work: Counter[str] = Counter()
    for path, count in Counter(paths).items():
        for text in dict.fromkeys(path):
            if match := _MODULE.match(text):
                instances.setdefault(match["kind"], set()).add(text)
                work[match["kind"]] += count
    several = [kind for kind in work if len(instances[kind]) >= LEAST]
    return max(several, key=lambda kind: work[kind], default="")


def _below(path: tuple[str, ...], layer: str) -> tuple[tuple[str, ...], str]:
    """The kinds of modules inside the layer, and the layer's own instance."""
    kinds = [(match["kind"], text) for text in path if (match := _MODULE.match(text))]
    for place, (kind, text) in enumerate(kinds):
        if kind == layer:
            return tuple(each for each, _ in kinds[place + 1 :]), text
    return (), ""


def _layers(kernels: Sequence[_KernelOfLayer], period: Period) -> tuple[int, str]:
    """The number of layers, and the nn.Module that shows it; without one, the number of consecutive repetitions."""
    named = {kernel.layer for kernel in kernels if kernel.layer}
    kinds = {match["kind"] for text in named if (match := _MODULE.match(text))}
    if len(kinds) == 1 and abs(len(named) - period.repetitions) <= 2:
        return len(named), f"{kinds.pop()} with {counted(len(named), 'instance')}"
    return period.repetitions, ""


def _consensus(kernels: Sequence[_KernelOfLayer], period: Period) -> list[list[_KernelOfLayer]]:
    """For each place of the layer the kernels that occur there, the most frequent first."""
    found: list[list[_KernelOfLayer]] = []
    for place in range(period.length):
        standing = [
            kernels[index]
            for repetition in range(period.repetitions)
            if (index := period.first + repetition * period.length + place) < len(kernels)
        ]
        counts = Counter(kernel.name for kernel in standing)
        least = max(RARE * len(standing), 1)
        often = [name for name, count in counts.most_common() if count >= least and count > 1] or [standing[0].name]
        modules = Counter(kernel.modules for kernel in standing if kernel.name == often[0]).most_common(1)[0][0]
        found.append([_KernelOfLayer(name, modules) for name in often])
    return found


def _rotated(places: list[list[_KernelOfLayer]]) -> list[list[_KernelOfLayer]]:
    """The places rotated so that the norm before attention comes first; unchanged without such a norm."""
    roles = [attribute(kernels[0].name).role for kernels in places]
    attention = [place for place, role in enumerate(roles) if role is Role.ATTENTION]
    norms = [place for place, role in enumerate(roles) if role is Role.NORM]
    if not attention or not norms:
        return places
    # Norms of queries and keys follow the projection; the layer's own norm precedes it.
    own = [place for place in norms if _gemm_between(place, attention[0], roles)] or norms
    first = min(own, key=lambda place: (attention[0] - place) % len(places))
    return places[first:] + places[:first]


def _gemm_between(start: int, end: int, roles: Sequence[Role]) -> bool:
    """Whether a projection is between a norm and attention: then the norm is the layer's first norm, not the
    queries'."""
    between = [roles[(start + step) % len(roles)] for step in range(1, (end - start) % len(roles))]
    return Role.GEMM in between


def _modules(places: list[list[_KernelOfLayer]]) -> list[dict[str, Any]]:
    groups = _groups(places)
    entries: list[dict[str, Any]] = []
    last: tuple[Any, ...] | None = None
    used: Counter[tuple[str, str]] = Counter()
    for kernels, group in zip(places, groups, strict=True):
        path, full = kernels[0].modules, kernels[0].name
        role, label = str(attribute(full).role), split(normal_form(full))[0].split("::")[-1][:60] or full[:60]
        key = (group, path) if path else (group, role, object())
        if key != last:
            name = path[-1] if path else role
            used[group, name] += 1
            entries.append({"group": group, "name": name, "kernels": []})
            if used[group, name] > 1:
                entries[-1]["name"] = f"{name} {used[group, name]}"
            last = key
        entries[-1]["kernels"].append({"label": label, "match": _pattern(kernels)})
    return entries


def _groups(places: list[list[_KernelOfLayer]]) -> list[str]:
    """Groups: attention up to the norm after it, then mlp (or experts). If nn.Modules name the layer's parts, these are
    the groups."""
    roles = [attribute(kernels[0].name).role for kernels in places]
    feed = next((_FEED[role] for role in roles if role in _FEED), "mlp")
    if Role.ATTENTION not in roles:
        return ["layer"] * len(places)
    last = max(place for place, role in enumerate(roles) if role is Role.ATTENTION)
    after = next((place for place in range(last + 1, len(roles)) if roles[place] is Role.NORM), len(roles))
    return ["attention" if place < after else feed for place in range(len(roles))]


def _pattern(kernels: Sequence[_KernelOfLayer]) -> str:
    """A pattern of the functions' names without template arguments, since a tile size does not change a kernel's
    role."""
    bases = dict.fromkeys((split(normal_form(kernel.name))[0] or kernel.name)[:_PREFIX] for kernel in kernels)
    return "|".join(f"^(?:void )?{re.escape(base)}" for base in bases)
