"""`1 row`, `2 rows`: whoever prints how many there are does so by store.counts."""

import ast
import re

from kernelderby.store.counts import counted

NOUNS = "calls cards cells characters commands definitions dimensions elements events fields files gaps instances"
NOUNS += " invocations kernels launches layers libraries metrics operators outputs patterns processes profiles races"
NOUNS += " records replays requests rows shapes solutions steps times tokens values workloads"
MANY = re.compile(rf" (?:other |more )?(?:{NOUNS.replace(' ', '|')})\b")


def test_one_and_many():
    assert [counted(each, "row") for each in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(1, "row has", "rows have") == "1 row has" and counted(3, "row has", "rows have") == "3 rows have"


def test_no_length_stands_before_a_plural(checkout):
    """But in the packages for servers, which stand alone."""
    found = []
    package = checkout / "kernelderby"
    for path in set(package.rglob("*.py")) - set((package / "deploy/runtime").iterdir()):
        for text in ast.walk(ast.parse(path.read_text())):
            if isinstance(text, ast.JoinedStr):
                for value, words in zip(text.values, text.values[1:], strict=False):
                    if isinstance(value, ast.FormattedValue) and isinstance(words, ast.Constant):
                        told = ast.unparse(value.value)
                        if told.startswith("len(") and MANY.match(words.value):
                            found.append(f"{path.relative_to(checkout)}:{text.lineno}: {{{told}}}{words.value[:20]}")
    assert not found
