"""A definition's reference as a solution: plain torch to race against, without a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from kernelderby.catalog.model import Definition, Requires, Solution
from kernelderby.rows.measurement import Stage
from kernelderby.store.names import REFERENCE

_AUTHOR = "baseline"  # plain torch, as the baselines


def reference_solution(definition: Definition) -> Solution:
    return Solution(
        name=f"{definition.name}{REFERENCE}",
        definition=definition.name,
        author=_AUTHOR,
        op_type=definition.op_type,
        language="python",
        entry_point="main.py::run",
        destination_passing_style=False,
        description="Plain torch: the definition's reference.",
        folder=None,
        json_path=definition.path,
        sources={"main.py": definition.reference},
        requires=Requires(cpu=True),
        stages=(Stage("torch", "torch's own kernels", ("at::native::",), None, None),),
    )


def reference_named(name: str, definitions: Mapping[str, Definition]) -> Solution | None:
    """The reference solution of a name such as rms_norm_reference."""
    definition = definitions.get(name.removesuffix(REFERENCE)) if name.endswith(REFERENCE) else None
    return None if definition is None else reference_solution(definition)


def is_reference(solution: Solution, definitions: Mapping[str, Definition]) -> bool:
    definition = definitions.get(solution.definition)
    return definition is not None and solution.json_path == definition.path
