"""Options that take several names."""

import click
import pytest
from click.testing import CliRunner

from kernelderby.cli.names import NamesCommand


@click.command(cls=NamesCommand)
@click.argument("first", nargs=-1)
@click.option("--solutions", multiple=True)
@click.option("--rounds", type=int, default=5)
@click.option("--again", is_flag=True)
def command(first, solutions, rounds, again):
    click.echo(f"{first} {solutions} {rounds} {again}")


@pytest.mark.parametrize("words, shown", [
    ("", "() () 5 False"),
    ("--solutions a b --rounds 3", "() ('a', 'b') 3 False"),
    ("--solutions a,b --again", "() ('a', 'b') 5 True"),
    ("--solutions a --solutions b", "() ('a', 'b') 5 False"),
    ("--solutions=a b", "() ('a', 'b') 5 False"),
    ("x y --solutions a", "('x', 'y') ('a',) 5 False"),
    ("--rounds 3 x", "('x',) () 3 False"),
])
def test_words_up_to_the_next_option_are_names(words, shown):
    assert CliRunner().invoke(command, words.split()).output.strip() == shown


def test_an_option_without_a_name_is_an_error():
    result = CliRunner().invoke(command, ["--solutions", "--again"])
    assert result.exit_code == 2 and "'--solutions' needs at least one name" in result.output
