"""Options that take several names, as flashinfer-bench's do: --solutions a b, or a,b, or the option repeated."""

from __future__ import annotations

from itertools import zip_longest

import click


class NamesCommand(click.Command):
    """A command whose repeatable options (multiple=True) each take all the words up to the next option."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        several = {flag for parameter in self.params if isinstance(parameter, click.Option) and parameter.multiple
                   for flag in parameter.opts}
        return super().parse_args(context, _repeated(arguments, several))


def _repeated(arguments: list[str], several: set[str]) -> list[str]:
    """["--solutions", "a", "b,c"] -> ["--solutions", "a", "--solutions", "b", "--solutions", "c"]."""
    out: list[str] = []
    current = None
    for word, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        flag, equals, value = word.partition("=")
        if flag in several:
            current = flag
            if equals:
                out += _pairs(flag, value)
            elif following.startswith("-"):
                raise click.BadOptionUsage(flag, f"Option {flag!r} needs at least one name.")
        elif word.startswith("-") or current is None:
            current = None
            out.append(word)
        else:
            out += _pairs(current, word)
    return out


def _pairs(flag: str, names: str) -> list[str]:
    return [part for name in names.split(",") if name for part in (flag, name)]
