"""The function in a source file that computes an operator. Its parameters show whether it also takes the outputs."""

from __future__ import annotations

import ast

from kernelderby.catalog import Definition
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted
from kernelderby.store.fields import suggestion


def parsed(place: object, text: str) -> ast.Module:
    """DerbyError with the line of a syntax error. Without the mark with which some editors begin a file in UTF-8."""
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        raise DerbyError(f"{place}:{error.lineno}: {error.msg}; mend it") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise DerbyError(f"{place}: is no Python ({str(error)[:100]}); mend it") from None


def takes_outputs(place: object, tree: ast.Module, function: str, definition: Definition) -> bool | None:
    """True if the function writes into the outputs, None if unknown (`run = torch.compile(kernel)`, run(*args)).
    DerbyError if it takes neither the inputs nor the inputs and outputs, or takes them in another order."""
    inputs, outputs = [*definition.inputs], [*definition.outputs]
    arguments = _arguments(place, tree, function, definition)
    if arguments is None:
        return None
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    least = len(names) - len(arguments.defaults)
    fits = [each for each in (inputs, [*inputs, *outputs]) if least <= len(each) <= len(names) or arguments.vararg]
    if not fits or None in arguments.kw_defaults:
        needed = [
            each.arg for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not value
        ]
        taken = f"needs {', '.join(needed)} by name" if needed else f"has {counted(len(names), 'parameter')}"
        raise DerbyError(
            f"{place}: {function}() {taken}; {definition.name} gives {', '.join(inputs)}; or these and "
            f"{', '.join(outputs)}, to write into"
        )
    if arguments.vararg:
        return None
    # A parameter with a default, such as eps=1e-6, may stand in the place of an output.
    with_outputs = len(fits) == 1 and fits[0] != inputs
    with_outputs = with_outputs or (len(fits) > 1 and names[len(inputs) : len(fits[1])] == outputs)
    given = [*inputs, *outputs] if with_outputs else inputs
    own = names[: len(given)]
    if own != given and sorted(own) == sorted(given):
        raise DerbyError(
            f"{place}: {function}({', '.join(own)}): is called by place; write {function}({', '.join(given)})"
        )
    return with_outputs


def expect_writing(place: object, text: str, definition: Definition) -> None:
    """DerbyError if its run() does not write into the outputs."""
    if takes_outputs(place, parsed(place, text), "run", definition) is False:
        words = ", ".join((*definition.inputs, *definition.outputs))
        raise DerbyError(f"{place}: run() takes the inputs alone; write run({words}), which writes into the outputs")


def _arguments(place: object, tree: ast.Module, function: str, definition: Definition) -> ast.arguments | None:
    functions = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = [(target, node.value) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    made = {
        target.id: value.args if isinstance(value, ast.Lambda) else None
        for target, value in assigned
        if isinstance(target, ast.Name)
    }
    found: dict[str, ast.arguments | None] = {**made, **functions}
    if function not in found:
        inputs = ", ".join(definition.inputs)
        mend = f"write {place}::NAME; {suggestion(function, functions)}" if functions else f"add {function}({inputs})"
        raise DerbyError(f"{place}: has no {function}(); {mend}")
    return found[function]
