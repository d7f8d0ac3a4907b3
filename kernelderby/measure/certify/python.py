"""A digest of a CUDA solution's Python: the code that runs in a call, without the code that builds the library.

The library's own code is compared word for word. So the code that finds, compiles and caches it does not count: names
of headers in lists, the sources of a CudaLibrary, and the class CudaLibrary except its call and its loading.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from kernelderby.catalog import Solution
from kernelderby.catalog.code import python_form

_LIBRARY, _CALLED = "CudaLibrary", ("__call__", "load")
_SOURCES = 2  # the argument of CudaLibrary(main, name, sources, parameters) that holds them


def python_digest(solution: Solution) -> str:
    """Includes the parts of solution.toml about the call."""
    parts = {
        path: _form(text) if path.endswith(".py") else text
        for path, text in solution.sources.items()
        if not path.endswith((".cu", ".cuh", ".h"))
    }
    return solution.digest_of(sorted(parts.items()))


def building(solution: Solution) -> list[tuple[str, str]]:
    """The Python about the libraries that nvcc builds: each CudaLibrary(main, name, source, ...) without its
    parameters, and the class itself. All sources if a solution builds in its own way."""
    found = []
    for path, text in sorted(solution.sources.items()):
        for node in ast.walk(ast.parse(text)) if _LIBRARY in text and path.endswith(".py") else ():
            if isinstance(node, ast.Call) and _name(node.func) == _LIBRARY and len(node.args) > _SOURCES:
                found.append((path, f"{ast.unparse(node.args[1])} {ast.unparse(_first(node.args[_SOURCES]))}"))
            elif isinstance(node, ast.ClassDef) and node.name == _LIBRARY:
                found.append((path, python_form(text)))
    return found or sorted(solution.sources.items())


def _form(text: str) -> str:
    tree = ast.parse(text)
    tree.body = [each for each in tree.body if not _lists_headers(each)]
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            node.elts = [each for each in node.elts if not _is_header(each)]
        elif isinstance(node, ast.Call) and _name(node.func) == _LIBRARY and len(node.args) > _SOURCES:
            node.args[_SOURCES] = _first(node.args[_SOURCES])
    for each in tree.body:
        if isinstance(each, ast.ClassDef) and each.name == _LIBRARY:
            tree.body = [*_without_build(tree.body, each)]
            break
    return python_form(ast.unparse(tree))


def _is_header(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith((".cuh", ".h"))


def _lists_headers(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.List | ast.Tuple) and bool(value.elts) and all(map(_is_header, value.elts))


def _first(sources: ast.expr) -> ast.expr:
    return sources.elts[0] if isinstance(sources, ast.List | ast.Tuple) and sources.elts else sources


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _without_build(body: list[ast.stmt], library: ast.ClassDef) -> Iterator[ast.stmt]:
    """The module without the code that only the build of a library needs, at any depth."""
    kept = [each for each in library.body if isinstance(each, ast.FunctionDef) and each.name in _CALLED]
    asked = {node.attr for node in _nodes(kept) if isinstance(node, ast.Attribute) and _name(node.value) == "self"}
    built = [each for each in library.body if each not in kept]
    library.body = [*kept, *_assigned(built, asked)]
    others = [each for each in body if each is not library]
    gone: list[ast.stmt] = []
    while True:
        running = _names([library, *(each for each in others if each not in gone)])
        wanted = _names([*built, *gone])
        more = [each for each in others if each not in gone and (bound := _bound(each)) and bound <= wanted - running]
        if not more:
            return (yield from (each for each in body if each not in gone))
        gone += more


def _assigned(methods: list[ast.stmt], asked: set[str]) -> Iterator[ast.stmt]:
    """The assignments in __init__ of attributes that the call uses."""
    for node in _nodes(methods):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            targets, values = ([node.targets[0]], [node.value])
            if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                targets, values = targets[0].elts, node.value.elts
            for target, value in zip(targets, values, strict=True):
                if isinstance(target, ast.Attribute) and target.attr in asked:
                    yield ast.copy_location(ast.Assign([target], value), node)


def _nodes(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for each in statements:
        yield from ast.walk(each)


def _names(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that they read."""
    return {node.id for node in _nodes(statements) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at a module's top defines; empty if it does more."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()
