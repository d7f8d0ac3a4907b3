"""Inputs other than normal numbers, for one more round of the check each: what a definition's INPUT_DRAWS says.

A draw is a dict. The name of an input goes with a factor, "plus N" or "same" (every element as the first); any other
name is a value for generate_inputs, such as {"routing": "few"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kernelderby.catalog import Definition
from kernelderby.measure.judge.blame import DefinitionFailed

Draw = Mapping[str, float | str]
NORMAL: Draw = MappingProxyType({})


def told(draw: Draw) -> str:
    return ", ".join(
        f"{name} x {how:g}" if isinstance(how, (int, float)) else f"{name} {how}" for name, how in draw.items()
    )


def of_generator(definition: Definition, draw: Draw) -> dict[str, float | str]:
    """The part that generate_inputs gets."""
    return {name: how for name, how in draw.items() if name not in definition.inputs}


def apply(definition: Definition, draw: Draw, inputs: dict[str, Any]) -> None:
    """The part that changes what was drawn, in place. DefinitionFailed where it cannot."""
    for name, how in draw.items():
        if name not in definition.inputs:
            continue
        if isinstance(how, (int, float)):
            inputs[name].mul_(how)
        elif how == "same":
            inputs[name].copy_(inputs[name].flatten()[:1].clone().expand(inputs[name].shape))
        elif how.startswith("plus "):
            inputs[name].add_(float(how.removeprefix("plus ")))
        else:
            raise DefinitionFailed(
                f'{definition.place}: INPUT_DRAWS: {name}: {how!r:.40} is neither a number nor "plus N" nor "same"; '
                "mend the definition"
            )
