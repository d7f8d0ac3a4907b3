"""derby new operator: contract, reference, shapes and costs of an operator of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import DerbyCommand, json_option, names_option, written_root_option
from kernelderby.cli.output import say, say_json, say_line
from kernelderby.errors import DerbyError


@click.command(cls=DerbyCommand)
@click.argument("name", required=False)
@click.argument("inputs", metavar="[INPUT]...", nargs=-1)
@click.option("--input", "further", multiple=True, metavar="INPUT", help="The same as INPUT; may be repeated.")
@click.option("--run", "computes", default="", metavar="EXPRESSION", help="What it computes, in torch (F: functional).")
@click.option(
    "--from", "function", default="", metavar="MODULE:FUNCTION", help="A reference of yours; FILE.py:NAME too."
)
@click.option("--example", default="", metavar="MODULE:NAME", help="Gives its arguments; inputs and axes follow.")
@click.option(
    "--output", "outputs", multiple=True, metavar="OUTPUT", help="As INPUT (default: what the reference gives)."
)
@click.option("--size", "measured", multiple=True, metavar="AXIS=N,N", help="Shapes to measure: every combination.")
@names_option("--constant", "constants", metavar="INPUT", help="Weights: a solution's setup may prepare them once.")
@click.option("--op-type", default="own", show_default=True, help="The folder under definitions/.")
@click.option("--description", default="", help="One sentence.")
@json_option
@written_root_option
def command(
    name: str | None,
    inputs: tuple[str, ...],
    further: tuple[str, ...],
    computes: str,
    function: str,
    measured: tuple[str, ...],
    as_json: bool,
    root: Path,
    **options: Any,
) -> None:
    """Write the operator NAME: its contract, its reference, its shapes with counted costs. Without NAME it asks.

    INPUT is NAME:DTYPE[AXIS,...]; a number is a fixed size: x:bf16[T,2,D]. Sizes may follow from axes:
    scale:f32[T,D/128]. ids:i32[T]=0..V has values below V, starts:i32[B+1]=offsets(T) rises from 0 to T,
    sizes:i32[E]=parts(T) sums to T, slots:i32[T]=distinct(V) has no value
    twice, eps:f32=1e-6 is a number.

    \b
    derby new operator swiglu 'x:bf16[T,2,D]' \\
        --run 'F.silu(x[:, 0].float()) * x[:, 1].float()'
    derby new operator gather 'table:bf16[V,D]' 'ids:i32[T]=0..V' \\
        --run 'table[ids.long()]' --size T=1,512 --size V=32000
    derby new operator mine --from my_ops.py:mine --example my_ops.py:inputs
    """
    from kernelderby.api.authoring import new_operator

    words = [*inputs, *further]
    if name is None or (not words and not function and sys.stdin.isatty()):
        name, words, computes, measured = _asked(root, name, words, computes, measured)
    if not words and not function:
        raise click.UsageError("give the inputs, such as x:bf16[T,2,D], or --from MODULE:FUNCTION")
    if function and computes:
        raise click.UsageError("--run and --from both say what it computes; leave one out")
    told = [part for word in measured for part in word.split()]
    written = new_operator(root, name, words, computes=computes, function=function, measured=told, **options)
    if as_json:
        return say_json(written.to_json())
    say(written.shown)
    for path in written.files:
        say(f"wrote {path}")
    for note in written.notes:
        say_line(note)
    say(f"next: derby check {name}; derby new solution NAME --for {name} --language triton")


def _asked(
    root: Path, name: str | None, words: list[str], computes: str, measured: tuple[str, ...]
) -> tuple[str, list[str], str, tuple[str, ...]]:
    if not sys.stdin.isatty():
        raise click.UsageError("give a NAME and the inputs, such as: derby new operator swiglu 'x:bf16[T,2,D]'")
    from kernelderby.authoring.operator import expect_new
    from kernelderby.authoring.words import base_axes, sizes, tensors
    from kernelderby.catalog import Catalog

    is_new = _right(lambda word: expect_new(Catalog.open(root), "operator", word, ("--op-type", "own")))
    name = name or click.prompt("name of the operator", value_proc=is_new)
    while word := _another(words):
        words.append(word)
    computes = computes or click.prompt("what it computes, in torch (empty: later)", default="", show_default=False)
    chosen = click.prompt(
        "sizes to measure, such as T=1,64 D=4096 (empty: usual ones)",
        default="",
        show_default=False,
        value_proc=_right(lambda text: sizes(text.split(), base_axes(tensors(words)))),
    )
    return name, words, computes, (*measured, *chosen.split())


def _another(words: list[str]) -> str:
    """One more input; empty: no more."""
    from kernelderby.authoring.words import tensors

    text, check = "another input (empty: no more)", _right(lambda text: text and tensors([*words, text]))
    if not words:
        return str(click.prompt("input, such as x:bf16[T,2,D]", value_proc=check))
    return str(click.prompt(text, default="", show_default=False, value_proc=check))


def _right(check: Callable[[str], object]) -> Callable[[str], str]:
    """For click, which shows what is wrong and asks again."""

    def checked(text: str) -> str:
        try:
            check(text)
        except DerbyError as error:
            raise click.UsageError(str(error)) from None
        return text

    return checked
