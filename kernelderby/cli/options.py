"""Words that mean and accept the same in every verb: --root, --definitions, --solutions, --workloads, --gpu, files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kernelderby.errors import DerbyError
from kernelderby.store.bounds import Bounds, enforced
from kernelderby.store.locate import find_set, writable_set

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # 8.1 has no type parameters
    _ParamType = click.ParamType


def _bounds(context: click.Context, param: click.Parameter, value: str | None) -> Bounds | None:
    try:
        found = Bounds.parse(value) if value else None
    except ValueError as problem:
        is_of_shell = context.get_parameter_source("bounds") is click.core.ParameterSource.ENVIRONMENT
        raise DerbyError(f"{'$DERBY_BOUNDS' if is_of_shell else '--bounds'}: {problem}") from None
    context.meta["kernelderby.store.bounds"] = found
    return found


class DerbyCommand(click.Command):
    """A verb within its bounds (store/bounds.py). Its words are kept for `--write`, which holds them against a block's
    marker."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for each in self.params:
            if isinstance(each, click.Option) and isinstance(each.type, Number):
                each.show_default = True
        self.params.append(
            click.Option(
                ["--bounds"],
                metavar="NAME=N,...",
                envvar="DERBY_BOUNDS",
                callback=_bounds,
                expose_value=False,
                help="Limits of the command, such as time=900,memory=8G (docs/report.md).",
            )
        )

    def invoke(self, context: click.Context) -> Any:
        from kernelderby.cli.completion import expect_names

        if isinstance(root := context.params.get("root"), Path):
            expect_names(context.params, root)
        with enforced(context.meta.get("kernelderby.store.bounds"), context.info_name or ""):
            return super().invoke(context)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if context.resilient_parsing:  # the shell asks for completions
            from kernelderby.cli.completion import complete_names

            complete_names(self.params)
        context.meta["kernelderby.words"] = tuple(args)
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            if "unexpected extra argument" in error.message and any(
                isinstance(each, click.Option) and each.multiple for each in self.params
            ):
                several = "An option takes one value: write several as a,b or repeat the option."
                raise click.UsageError(f"{error.message.rstrip('.')}. {several}", context) from None
            raise


class PathType(click.Path):
    """A path; an empty one is a variable that was not set, never the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        is_option = param is not None and param.param_type_name == "option"
        name = "path" if param is None else param.opts[0] if is_option else param.human_readable_name.strip("[].")
        if value == "":
            raise DerbyError(f"{name}: is empty; give a path (is a variable not set?)")
        from kernelderby.store.files import too_long

        if too_long(os.fsencode(value)):
            raise DerbyError(f"{name}: is longer than a path can be; give another one")
        return super().convert(value, param, context)


FILE = PathType()


class Number(_ParamType):
    """A finite number from least to most. Help shows the default (DerbyCommand) and no bounds; a value out of them is
    refused with both."""

    def __init__(self, least: float, most: float, above: bool = False) -> None:
        """above: least itself is out."""
        self.name = "n"
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        number = self._plain.convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, context)
        if not self.least <= number <= self.most or (self.above and number == self.least):
            says = f"above {self.least}" if self.above else f"from {self.least} to {self.most}"
            self.fail(f"{value} is out of range; give a number {says}.", param, context)
        return number

    @property
    def _plain(self) -> click.ParamType[Any]:
        return click.FLOAT


class Count(Number):
    """A whole number from least on; more than a million is a slip."""

    def __init__(self, least: int) -> None:
        super().__init__(least, 1_000_000)

    @property
    def _plain(self) -> click.ParamType[Any]:
        return click.INT


SECONDS = Number(0, math.inf, above=True)
FACTOR = Number(1, math.inf, above=True)


def _root(context: click.Context, param: click.Parameter, value: Path | None) -> Path:
    """What stands after the verb, else before it, else what find_set() finds."""
    if value is None and context.parent is not None:
        value = context.parent.params.get("root")
    return find_set() if value is None else value


def _written_root(context: click.Context, param: click.Parameter, value: Path | None) -> Path:
    """The same, for verbs that write into the set."""
    root = _root(context, param, value)
    writable = writable_set(root)
    if writable != root:
        click.echo(f"derby: writing into {writable}, a copy of the installed set", err=True)
    return writable


_WHERE = (
    "The trace set (default: $DERBY_ROOT, else the one around this folder, else "
    "$FIB_DATASET_PATH, else the installed one)."
)
root_option = click.option("--root", type=FILE, callback=_root, help=_WHERE)
written_root_option = click.option("--root", type=FILE, callback=_written_root, help=_WHERE)
strict_option = click.option("--strict", is_flag=True, help="Fail if a file of the set is broken and was left out.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def _several(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for value in values for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("a name is empty; write a,b or repeat the option", context, param)
    return tuple(dict.fromkeys(names))


def names_option(*flags: str, help: str, metavar: str, default: Sequence[str] = ()) -> Callable[..., Any]:
    """One value, which may be a list with commas; the option may be repeated."""
    return click.option(
        *flags,
        multiple=True,
        callback=_several,
        metavar=f"{metavar}[,{metavar}]",
        help=help,
        default=default,
        show_default=bool(default),
    )


definitions_option = names_option(
    "--definitions", "--definition", metavar="D", help="Only these operators (default: all)."
)
solutions_option = names_option("--solutions", "--solution", metavar="S", help="Only these solutions (default: all).")
workloads_option = names_option(
    "--workloads",
    "--workload",
    metavar="W",
    help="Only these workloads: the start of a uuid, a size, axis=size, or a number such as #3 (default: all).",
)
origin_option = names_option(
    "--origin",
    metavar="O",
    help="Only workloads of these origins, such as survey (default: all; S counts the survey's).",
)
gpu_option = click.option(
    "--gpu", metavar="NAME|ID", help='A GPU, such as "NVIDIA H200" or h200 (default: the one with the most rows).'
)
ray_option = click.option(
    "--ray",
    "address",
    is_flag=False,
    flag_value="auto",
    default="",
    metavar="[ADDRESS]",
    help="Use a Ray cluster (docs/cluster.md; default: the one that runs here, else this machine alone).",
)
kinds_option = names_option(
    "--gpu",
    "kinds",
    metavar="NAME|ID",
    help="With --ray: only these kinds of GPU, such as h100,h200 (default: all; cpu is for a trial).",
)


for_option = click.option("--for", "operator", metavar="OPERATOR", help="The operator that FILE.py computes.")
shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="AXIS=N,...",
    help="A shape of your own, such as num_tokens=64,hidden_size=4096; may be repeated.",
)


def _secret(context: click.Context, param: click.Parameter, value: str | None) -> str:
    if value is None:
        return ""
    if not re.fullmatch(r"[0-9a-f]{16,64}", value):
        raise DerbyError(f"--secret: {value!r:.80} is not 16 to 64 hex digits; give the one that a run printed")
    return value


fresh_option = click.option(
    "--fresh",
    type=Count(1),
    callback=lambda context, param, value: value or 0,
    metavar="N",
    help="N fresh shapes of each operator instead of the listed ones. The secret draws them.",
)
secret_option = click.option(
    "--secret",
    metavar="HEX",
    callback=_secret,
    help="Draw the same inputs (and fresh shapes) as the run that printed this secret.",
)


def expect_python(places: Iterable[str]) -> None:
    """DerbyError for a file or folder of another kind, where a FILE.py may stand."""
    for each in places:
        path = Path(each)
        if each and not each.isidentifier() and path.is_dir():
            raise DerbyError(f"{each}: is a folder; name a FILE.py in it, or a solution")
        if not each.endswith(".py") and not each.isidentifier() and path.is_file():
            raise DerbyError(
                f"{each}: is no FILE.py; `derby new solution NAME --for OPERATOR --language cuda` makes a folder where "
                "Python calls a kernel.cu"
            )


class Wanted(NamedTuple):
    """What a verb takes of a set: names of solutions and operators, words for workloads, origins. Empty: all."""

    solutions: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()

    def resolved(self, catalog: Any) -> Wanted:
        """Names instead of aliases, each once. DerbyError for one that the set does not have, before anything slow."""
        chosen = catalog.solutions_named(self.solutions)
        definitions = tuple(dict.fromkeys(catalog.definition(name).name for name in self.definitions))
        for each in chosen:
            if definitions and each.definition not in definitions:
                told = f"{each.name} is a solution of {each.definition}, not of {', '.join(definitions)}"
                raise DerbyError(f"{told}; leave one out")
        return self._replace(solutions=tuple(each.name for each in chosen), definitions=definitions)


class Draw(NamedTuple):
    """fresh: shapes of each operator, 0 for the listed ones. secret: empty where the run draws its own."""

    fresh: int
    secret: str


class Cluster(NamedTuple):
    """address: empty without --ray. kinds: of GPUs, empty for all."""

    address: str
    kinds: tuple[str, ...]

    def expect_kinds(self, otherwise: str) -> None:
        """UsageError where kinds are named without a cluster. otherwise: what decides on this machine."""
        if self.kinds and not self.address:
            raise click.UsageError(f"--gpu goes with --ray{otherwise}")


def _gathered(name: str, record: Callable[..., Any], options: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A decorator: the command has these options (by the name of their value) and gets one record of them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(**given: Any) -> Any:
            values = {each: given.pop(each) for each in options}
            return function(**{name: record(**values)}, **given)

        for option in reversed([*options.values()]):
            wrapped = option(wrapped)
        return wrapped

    return decorate


_CHOICES = dict(
    zip(Wanted._fields, (solutions_option, definitions_option, workloads_option, origin_option), strict=True)
)
draw_options = _gathered("draw", Draw, {"fresh": fresh_option, "secret": secret_option})
cluster_options = _gathered("cluster", Cluster, {"address": ray_option, "kinds": kinds_option})


def choice_options(*names: str) -> Callable[..., Any]:
    """names: fields of Wanted (default: all); the command gets one, `choice`."""
    return _gathered("choice", Wanted, {name: _CHOICES[name] for name in names or _CHOICES})
