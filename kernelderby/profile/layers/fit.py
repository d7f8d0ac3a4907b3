"""Whether a layer map is of the model that a profile is of: the layers in a row against those of the map."""

from __future__ import annotations

from kernelderby.errors import DerbyError
from kernelderby.profile.layers.draft import longest_run
from kernelderby.profile.layers.map import LayerMap
from kernelderby.profile.layers.sums import LayerColumn
from kernelderby.profile.spans import Profile
from kernelderby.store.counts import counted

_WHOLE = 0.05  # of a pass: a recording holds whole ones, but for what its ends cut off
_ENDS = 2  # layers at the ends of the model that may differ from the rest


def check_fit(profile: Profile, layer_map: LayerMap, column: LayerColumn) -> None:
    """A warning among the column's facts where one thing speaks against the map. DerbyError where two do."""
    run = longest_run(profile)
    if run is None or _holds(run, layer_map):
        return
    said = (
        f"{counted(run, 'layer repeats', 'layers repeat')} in a row, but the map {layer_map.name} has "
        f"{layer_map.layers}"
    )
    passes = column.passes or 0.0
    if abs(passes - round(passes)) > _WHOLE:
        raise DerbyError(
            f"{profile.path}: the map does not fit: {said}, which makes {passes:.2f} passes; set layers in a copy of "
            "it, or leave --map out for a draft"
        )
    column.facts.append(f"WARNING: {said}: the map may be another model's")


def _holds(run: int, layer_map: LayerMap) -> bool:
    """Whether the run may be layers of this model: some passes of one kind of its layers after the other."""
    kinds = {layer_map.layers, *(group.layers for group in layer_map.groups.values())}
    for layers in kinds:
        passes = max(round(run / layers), 1)
        if abs(run - passes * layers) <= _ENDS * passes or (run < layers and layers <= 2 * _ENDS):
            return True
    return any(layers % run == 0 for layers in kinds)
