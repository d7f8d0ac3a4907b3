"""New operators and solutions, for `derby new`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelderby.authoring.measured import small_enough
from kernelderby.authoring.operator import NewOperator, expect_new, source_of, stub, write_operator
from kernelderby.authoring.solution import write_solution
from kernelderby.authoring.words import (
    DTYPES,
    Part,
    Tensor,
    axis_names,
    axis_of,
    base_axes,
    expect_told,
    sizes,
    tensors,
    usual_sizes,
)
from kernelderby.catalog import Catalog
from kernelderby.catalog.pack import pack_one
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """The files that were written. shown: the contract as it was understood. notes: remarks for the user, one line
    each."""

    name: str
    files: tuple[Path, ...]
    shown: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        files = [str(file) for file in self.files]
        return {"name": self.name, "files": files, "contract": self.shown, "notes": list(self.notes)}

    def __repr__(self) -> str:
        return f"Written({self.name!r}, {counted(len(self.files), 'file')} in {self.files[0].parent})"


def new_operator(
    root: Path,
    name: str,
    inputs: Sequence[str] = (),
    *,
    outputs: Sequence[str] = (),
    computes: str = "",
    function: str = "",
    example: str = "",
    measured: Sequence[str] = (),
    constants: Sequence[str] = (),
    op_type: str = "own",
    description: str = "",
) -> WrittenEntry:
    """inputs: words such as "x:bf16[T,2,D]". computes: an expression of them in torch. function, example: MODULE:NAME
    or FILE.py:NAME of a reference and of its arguments, from which inputs and axes are inferred. measured: sizes such
    as "T=1,64". DerbyError for an impossible request."""
    catalog = Catalog.open(root)
    expect_new(catalog, "operator", name, ("--op-type", op_type))
    given, found_sizes, notes = tensors(inputs), dict[str, tuple[int, ...]](), list[str]()
    declared = tensors(outputs)
    if function:
        with _going_on():
            given, found_sizes, source = _from_function(function, example, given)
    elif not given:
        raise DerbyError("a new operator needs its inputs, such as x:bf16[T,2,D], or --from MODULE:FUNCTION")
    else:
        first = next((each for each in given if each.shape is not None), None)
        if not declared and not computes and first is not None:
            declared = [Tensor("output", first.dtype, first.shape)]
        body = f"return ({computes})" if computes else stub(given, declared)
        source = source_of(name, description, given, body)
        if not computes:
            notes.append("run() copies an input until you write what the operator computes (TODO in the .py)")
    for each in constants:
        if each not in [one.name for one in given if one.shape is not None]:
            raise DerbyError(f"--constant: {each!r:.80} is no tensor of the inputs; name one of them")
    expect_told(given, declared)
    told = found_sizes | sizes(measured, base_axes(given))
    chosen = usual_sizes(given, told)
    from kernelderby.measure.author.trial import run_trial  # torch: not before the words are right

    with _going_on():
        trial = run_trial(source, given, {axis: sizes[0] for axis, sizes in chosen.items()})
    results, source = _outputs(given, declared, trial.outputs, source, computes)
    chosen = small_enough((*given, *results), chosen, told)
    operator = NewOperator(
        name,
        op_type,
        description or f"{name}: {computes or function or 'to be written'}",
        tuple(given),
        tuple(results),
        source,
        chosen,
        {axis: trial.small.get(axis, size or 0) for axis, size in axis_names([*given, *results]).items()},
        trial.variants,
        {one.name: out.magnitude for one, out in zip(results, trial.outputs, strict=True)},
        tuple(constants),
    )
    files, left_out = write_operator(catalog, operator)
    notes += [*left_out, *trial.notes, *_exact(results), *_counted(catalog.root, name)]
    shown = "\n".join(
        [
            f"{name}({', '.join(map(str, given))}) -> {', '.join(map(str, results))}",
            *(f"  {axis} = {', '.join(map(str, measured))}" for axis, measured in chosen.items()),
        ]
    )
    return WrittenEntry(name, tuple(files), shown, tuple(notes))


@contextmanager
def _going_on() -> Iterator[None]:
    """DerbyError if the user's code calls exit(), which would end the command in silence."""
    try:
        yield
    except SystemExit as ended:
        if type(ended) is not SystemExit:  # cli/signals.py: Signalled
            raise
        raise DerbyError("the reference ends the process by exit(); take that out") from None


def _from_function(
    function: str, example: str, given: list[Tensor]
) -> tuple[list[Tensor], dict[str, tuple[int, ...]], str]:
    from kernelderby.measure.author.function import Call, arguments_of, axes_of, call_of, reference_source, resolved
    from kernelderby.measure.author.relations import axis_name

    module, found = resolved(function, "--from")
    if not callable(found):
        raise DerbyError(f"--from: {function} is no function; name one")
    if given:
        return given, {}, reference_source(module, found, Call(tuple(each.name for each in given)))
    if not example:
        raise DerbyError("--from: needs --example MODULE:NAME, which gives its arguments, or the inputs as words")
    arguments = arguments_of(found, resolved(example, "--example")[1])
    call = call_of(found, arguments)
    given_inputs = {name: arguments[name] for name in call.inputs}
    inferred = axes_of(partial(found, **call.fixed), given_inputs, bool(call.changed))
    names: dict[int, Part] = {}
    for argument in inferred.arguments:
        for place, axis in enumerate(argument.dims or ()):
            names.setdefault(axis, f"{argument.name}_dim{place}" if inferred.varies[axis] else inferred.sizes[axis])
    told = {axis_name(axis): str(name) for axis, name in names.items()}
    names |= {axis: each.renamed(told) for axis, each in inferred.follows.items()}
    given = [
        Tensor(
            each.name,
            each.dtype,
            None if each.dims is None else tuple(names[axis] for axis in each.dims),
            each.value,
            each.low,
            each.high if each.into is None else str(names[each.into]),
            each.rule,
        )
        for each in inferred.arguments
    ]
    measured: dict[str, tuple[int, ...]] = {
        name: (inferred.sizes[axis],) for axis, name in names.items() if isinstance(name, str)
    }
    return given, measured, reference_source(module, found, call)


def _outputs(
    given: Sequence[Tensor], declared: Sequence[Tensor], tried: Sequence[Any], source: str, computes: str
) -> tuple[list[Tensor], str]:
    """The outputs that the reference gives, under the declared names. An expression is cast to the declared dtype of
    its output. Without a declared dtype it is cast to the dtype of the first floating input if it computes in a wider
    one."""
    names = [each.name for each in declared] or [
        each.name or ("output" if len(tried) == 1 else f"output_{place}") for place, each in enumerate(tried)
    ]
    taken = {each.name for each in given} & {*names}
    names = [f"{name}_out" if name in taken else name for name in names]
    if len(names) != len(tried):
        raise DerbyError(f"--output: names {len(names)}, but the reference gives {len(tried)}; name each of them")
    floating = [each.dtype for each in given if each.shape is not None and each.dtype.startswith(("float", "bfloat"))]
    results, casts = [], []
    for place, (name, found) in enumerate(zip(names, tried, strict=True)):
        wanted = declared[place] if declared else None
        is_wider = found.dtype == "float64" or (floating and found.dtype == "float32")
        cast = (floating[0] if floating else "float32") if computes and is_wider else found.dtype
        dtype = wanted.dtype if wanted else cast
        if dtype not in DTYPES:
            raise DerbyError(f"the reference gives {name} as {dtype}; cast it to a dtype such as float32 or int32")
        shape = tuple(axis_of(part) for part in found.shape)
        if wanted and tuple(axis_of(part) for part in wanted.shape or ()) != shape:
            raise DerbyError(
                f"--output {wanted}: the reference gives {name}[{','.join(map(str, found.shape))}]; mend one"
            )
        if not computes and dtype != found.dtype:
            raise DerbyError(f"--output {wanted}: the reference gives {found.dtype}; mend one of them")
        results.append(Tensor(name, dtype, found.shape))
        casts.append("" if dtype == found.dtype else f".to(torch.{dtype})")
    if computes and any(casts):
        if len(casts) == 1:
            source = source.replace(f"return ({computes})", f"return ({computes}){casts[0]}")
        else:
            dtypes = ", ".join(f"torch.{each.dtype}" for each in results)
            source = source.replace(
                f"return ({computes})", f"return tuple(each.to(to) for each, to in zip(({computes}), ({dtypes},)))"
            )
    return results, source


def _exact(outputs: Sequence[Tensor]) -> list[str]:
    whole = [each.name for each in outputs if each.dtype.startswith("int")]
    told = "have to be equal: where ties or roundings leave a choice, mend tolerances or add canonical_outputs"
    return [f"whole numbers ({', '.join(whole)}) {told} (CONTRIBUTING.md)"] if whole else []


def _counted(root: Path, name: str) -> list[str]:
    """Packs the costs and blobs of a new operator. Returns one line about the counted costs."""
    from kernelderby.measure.judge.blobs import changes_of

    catalog = Catalog.open(root)
    definition = catalog.definition(name)
    said = changes_of(catalog, definition, catalog.workloads(name), False)
    notes = [line for line in said if "no cost" in line]
    costs = [each.cost for each in Catalog.open(root).workloads(name) if each.cost]
    if costs:
        cost = costs[-1]
        flops = ", ".join(f"{count:.3g} {dtype}" for dtype, count in cost.flops.items()) or "0"
        notes.append(
            f"costs counted from the reference, largest shape: {flops} flops, {cost.needed() / 1e6:.3g} MB; "
            "a count_cost(axes, inputs) in the .py overrides them"
        )
    return notes


def new_solution(root: Path, name: str, operator: str, language: str, author: str) -> WrittenEntry:
    """Writes and packs the solution's folder. The solution is correct from the start."""
    catalog = Catalog.open(root)
    definition = catalog.definition(operator)
    files = write_solution(catalog, name, definition, language, author)
    pack_one(root, files[0].parent)
    return WrittenEntry(name, tuple(files))
