"""python -m tests.mutation [MODULE...]: how many small changes of a module no test notices.

Each mutant is one change of one module: a comparison, an operator, a number, a branch, a returned value. A child
process loads the changed source in place of the module, and runs the tests that are named for it. What no test kills is
printed; equal.toml has the reasons of those that change nothing. Exit code 1 where more than 5 % of a module live
without one. Not in CI: it takes minutes.
"""

from __future__ import annotations

import ast
import copy
import importlib
import os
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_ALIVE, SECONDS = 0.05, 60
# The others take seconds or load the module in a process of their own, where it is as it was: they kill no more.
QUICK = "not command and not picture and not kill and not writers and not true_limit"
TESTS = {
    "rank.pairs": ["pinned/test_pairs.py", "test_rank.py"],
    "rank.order": ["pinned/test_order.py"],
    "roofline.floors": ["pinned/test_floors.py"],
    "measure.clock.timing": ["pinned/test_gpu_timers.py", "measure/test_timing.py", "measure/test_shift.py"],
    "measure.clock.shift": ["measure/test_shift.py"],
    "profile.spans": ["pinned/test_spans.py"],
    "store.files": ["pinned/test_whole_files.py", "edges/test_files.py"],
    "store.appended": ["pinned/test_appended.py", "edges/test_files.py", "measure/test_traces.py"],
    "rows.measurement": ["pinned/test_trace.py", "test_records.py"],
}
_OTHER = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


def changes(node: ast.AST) -> Iterator[tuple[str, str, object]]:
    """(what, field, new value) of a node, one change each."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            if type(op) in _OTHER:
                yield type(op).__name__, "ops", [*node.ops[:place], _OTHER[type(op)](), *node.ops[place + 1 :]]
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in _OTHER:
        yield type(node.op).__name__, "op", _OTHER[type(node.op)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", "op", ast.UAdd()
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield f"{node.value} + 1", "value", node.value + 1
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"not {node.value}", "value", not node.value
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "never", "test", ast.Constant(False)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None", "value", ast.Constant(None)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """("line what", the changed source). Messages, annotations, docstrings and zip's `strict` are left alone."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            parts += [node.returns, *(each.annotation for each in node.args.args), *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            parts += node.decorator_list
        elif isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.Raise | ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            parts.append(node)
        for part in parts:
            skipped.update(map(id, ast.walk(part)) if part is not None else ())
    nodes = [*ast.walk(tree)]
    for place, node in enumerate(nodes):
        for number, (what, field, _) in enumerate(changes(node)) if id(node) not in skipped else ():
            other = copy.deepcopy(tree)
            changed = [*ast.walk(other)][place]
            setattr(changed, field, [*changes(changed)][number][2])
            yield f"{node.lineno}:{node.col_offset} {what}", ast.unparse(ast.fix_missing_locations(other))


class Changed(SourceFileLoader):
    """Loads a module from other source than its file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def is_killed(module: str, source: str, loaded: Path | None = None) -> bool:
    """By its tests or its time limit, in a child that is ended with all that it started. loaded: their imports."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        code = 1
        try:
            sys.meta_path.insert(0, Changed(f"kernelderby.{module}", str(path_of(module)), source))
            words = ["-x", "-q", f"--timeout={SECONDS}", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-k", QUICK]
            words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # it is loaded already
            code = int(pytest.main([*words, *(str(ROOT / "tests" / each) for each in TESTS[module])]))
            if loaded is not None:
                loaded.write_text("\n".join(filter(is_foreign, sys.modules)))
        finally:
            os._exit(min(code, 100))
    status = os.waitpid(child, 0)[1]
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status != 0


def is_foreign(name: str) -> bool:
    path = getattr(sys.modules[name], "__file__", None) or ""
    return path.endswith((".py", ".so")) and not path.startswith((str(ROOT / "kernelderby"), str(ROOT / "tests")))


def load_once(module: str, source: str) -> bool:
    """Whether the tests pass on the module as it is. What they import of others is loaded here, not in every child."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = Path(folder) / "loaded"
        if is_killed(module, source, loaded):
            return False
        for name in loaded.read_text().split("\n"):
            with suppress(BaseException):
                importlib.import_module(name)
    return not is_killed(module, source)


def path_of(module: str) -> Path:
    return ROOT / "kernelderby" / f"{module.replace('.', '/')}.py"


def main(modules: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/edges")]
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    reasons = tomllib.loads((Path(__file__).parent / "equal.toml").read_text())
    failed = False
    for module in modules or TESTS:
        source = path_of(module).read_text()
        if not load_once(module, source):
            print(f"{module}: its tests fail without any change")
            return 1
        made, lines = [*mutants(source)], source.splitlines()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            dead = [*pool.map(partial(is_killed, module), [changed for _, changed in made])]
        alive = [what for (what, _), is_dead in zip(made, dead, strict=True) if not is_dead]
        bare = []
        for what in alive:
            line, _, change = what.partition(" ")
            text = lines[int(line.partition(":")[0]) - 1].strip()
            if f"{change}: {text}" not in reasons.get(module, {}):
                bare.append(f"{line} {change}: {text}")
        print(f"{module}: {len(made)} mutants, {len(alive)} alive, {len(bare)} without a reason", *bare, sep="\n    ")
        failed |= len(bare) > MOST_ALIVE * len(made)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
