"""Who may import whom: lower never sees higher, and only measure/ sees torch and its kin."""

import ast
import functools
import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kernelderby"

# A layer may import the ones to its left (and itself); those in one cell do not see each other.
LAYERS = [
    ("errors",),
    ("store",),
    ("rows",),
    ("statistics",),
    ("hardware",),
    ("catalog",),
    ("shapes", "authoring"),
    ("roofline",),
    ("profile",),
    ("capture",),
    ("rank",),
    ("deploy",),
    ("report",),
    ("measure",),
    ("api",),
    ("page", "serving"),
    ("cli",),
    ("__main__",),
]
RANK = {name: height for height, cell in enumerate(LAYERS) for name in cell}
MEASURE_MAY = {
    "errors",
    "store",
    "rows",
    "statistics",
    "catalog",
    "authoring",
    "hardware",
    "roofline",
    "measure",
}  # with the rest it meets in files only
ROOMS_OF_MEASURE = [
    ("fence", "clock"),
    ("wire",),
    ("machine",),
    ("judge",),
    ("worker",),
    ("run", "certify", "author", "decoder"),
    ("record", "tune"),
    ("cluster",),
]
MEASURE_ONLY = {
    "ray",
    "torch",
    "triton",
    "safetensors",
    "flashinfer",
    "flashinfer_bench",
    "cupti",
    "pynvml",
    "deep_gemm",
    "sgl_kernel",
}
ANYWHERE = {"click", "msgspec", "rich", "numpy", "kernelderby"} | set(sys.stdlib_module_names)
# Where each is imported, inside a function.
EXTRAS = {
    "mcp": ("serving/tools.py",),
    "matplotlib": ("report/plot.py",),
    "pandas": ("report/frame.py",),
    "pyarrow": (
        "catalog/columns/read.py",
        "catalog/columns/write.py",
        "catalog/groups.py",
        "profile/sources/sqlite/parquet.py",
    ),
}
COPIED = PACKAGE / "deploy" / "runtime"  # what exported packages run; only its selector is imported here
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py" and path.parent != COPIED)


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Dotted names of everything a module imports, at its top or inside a function."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer; write it out"
            yield node.module
            if node.module == "kernelderby":
                yield from (f"kernelderby.{alias.name}" for alias in node.names)


def our_layers(path):
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "kernelderby" and len(parts) > 1 and not parts[1].startswith("__"):
            yield parts[1]


def test_lower_never_imports_higher():
    wrong = []
    for path in MODULES:
        own = layer(path)
        if own not in RANK:
            wrong.append(f"{path}: {own} stands in no layer; add it to the table")
            continue
        for other in our_layers(path):
            if other != own and RANK[other] >= RANK[own]:
                wrong.append(f"{path}: {own} must not import {other}")
            if own == "measure" and other not in MEASURE_MAY:
                wrong.append(f"{path}: measure meets {other} in files only")
            if other == "measure" and own not in ("api", "cli", "measure"):
                wrong.append(f"{path}: only answers and commands import measure")
    assert wrong == []


def test_rooms_of_measure_never_import_a_higher_one():
    """judge is below worker: what runs a solution does not stand where its judge is."""
    rooms = {name: height for height, cell in enumerate(ROOMS_OF_MEASURE) for name in cell}
    measure = PACKAGE / "measure"
    assert {path.name for path in measure.iterdir() if (path / "__init__.py").is_file()} == set(rooms)
    assert [path.name for path in measure.glob("*.py")] == ["__init__.py"]
    for path in sorted(measure.glob("*/*.py")):
        for name in imports(path):
            parts = name.split(".")
            other = parts[2] if parts[:2] == ["kernelderby", "measure"] and len(parts) > 2 else None
            own = path.parent.name
            assert other in (None, own) or rooms[other] < rooms[own], f"{path}: {own} must not import {other}"


def test_only_measure_imports_torch_and_its_kin():
    wrong = []
    outside = [path for path in MODULES if layer(path) != "measure"]
    for path, name in ((each, name) for each in outside for name in imports(each)):
        top = name.split(".")[0]
        is_extra = path.relative_to(PACKAGE).as_posix() in EXTRAS.get(top, ())
        if top in MEASURE_ONLY:
            wrong.append(f"{path}: imports {name}; that belongs into measure/")
        elif top not in ANYWHERE and not is_extra:
            wrong.append(f"{path}: imports {name}, which is no core dependency")
    assert wrong == []


def test_what_exported_packages_run_knows_nothing_of_ours():
    for path in COPIED.glob("*.py"):
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if node.level == 0 else []
            assert all(
                name.partition(".")[0] in {"sglang", "torch", "vllm", *sys.stdlib_module_names} for name in names
            ), path


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.name)
def test_commands_import_heavy_things_inside_the_command(path):
    """At a command module's top only the standard library, click, the light parts of store/, errors and the group."""
    for node in parsed(path).body:
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else ([node.module] if isinstance(node, ast.ImportFrom) else [])
        )
        for name in names:
            assert (
                name
                in (
                    "click",
                    "kernelderby",
                    "kernelderby.store.bounds",
                    "kernelderby.store.counts",
                    "kernelderby.errors",
                    "kernelderby.store.locate",
                    "kernelderby.store.names",
                )
                or name.startswith("kernelderby.cli")
                or name.split(".")[0] in sys.stdlib_module_names
            ), f"{path}: import {name} inside the command"


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph():
    """Module -> the modules of the package that it imports by name, at its top or inside a function; `from a import b`
    is of a.b where that is a module, of a where b is something in it. Imports for the type checker alone are none."""
    names = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    graph = {}
    for name, path in names.items():
        found = graph[name] = set()
        for node in running(parsed(path)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names if alias.name in names)
            elif isinstance(node, ast.ImportFrom):
                wanted = {f"{node.module}.{alias.name}" for alias in node.names}
                found.update(wanted & set(names))
                if node.module in names and not wanted <= set(names):
                    found.add(node.module)
    return graph


def running(tree):
    """Every node but those under `if TYPE_CHECKING:`, which never run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield node
            yield from running(node)


def circle(graph):
    """One circle of the graph as a list that ends where it begins; None where there is none."""
    done, path = set(), []

    def walk(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        found = next(filter(None, map(walk, sorted(graph[name]))), None)
        path.pop()
        done.add(name)
        return found

    return next(filter(None, map(walk, sorted(graph))), None)


def test_one_way_in():
    """Only store/fields.py parses what people write; no other module opens a TOML."""
    for path in MODULES:
        assert path.name == "fields.py" or not {"tomllib", "tomli", "msgspec.toml"} & set(imports(path)), path


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_no_import_circle():
    """At no depth: an import inside a function only hides one."""
    graph = import_graph()
    assert sum(map(len, graph.values())) > 300
    assert circle(graph) is None


def test_no_class_name_twice():
    where = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_no_sibling_modules_share_a_prefix():
    """A prefix does a folder's work: sqlite_rows and sqlite_schema are sqlite/rows and sqlite/schema."""
    shared = {}
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        stems = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")]
        stems += [path.name for path in folder.iterdir() if (path / "__init__.py").is_file()]
        for prefix, count in Counter(stem.partition("_")[0] for stem in stems).items():
            if count > 1:
                shared[f"{folder.relative_to(PACKAGE)}/{prefix}_*"] = count
    assert shared == {}


def taken_from(room):
    """Names that other modules import from a room itself, not from a module inside."""
    modules = {module_name(path) for path in PACKAGE.rglob("*.py")}
    for path in MODULES:
        for node in imports_from(path):
            if node.module == room:
                yield from (alias.name for alias in node.names if f"{room}.{alias.name}" not in modules)


@functools.cache
def imports_from(path):
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)]


ROOMS = [
    module
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if hasattr(module := importlib.import_module(module_name(path)), "__all__")
]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_a_room_exports_existing_names_and_all_that_others_take(room):
    """__all__ of a room names existing things, once each, and everything that others import from it."""
    assert [name for name in room.__all__ if not hasattr(room, name)] == []
    assert len(set(room.__all__)) == len(room.__all__)
    assert set(taken_from(room.__name__)) - {"__version__"} <= set(room.__all__)


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "cli",
        "catalog",
        "catalog.pack",
        "hardware",
        "roofline.floors",
        "rank",
        "roofline.operators",
        "roofline.listing",
        "report",
        "report.roofline.answer",
        "report.importance",
    ],
)
def test_importing_it_does_not_load_torch(module):
    assert not loaded_by(f"import kernelderby.{module}") & MEASURE_ONLY


def test_the_group_loads_neither_rich_nor_numpy():
    assert not loaded_by("import kernelderby.cli") & {"rich", "numpy"}


@pytest.mark.parametrize("module", ["profile.spans", "profile.kernels.attribution", "profile.operators"])
def test_any_module_may_be_imported_first(module):
    """A package's __init__ that imports its readers makes a circle of what they and the lower modules share."""
    subprocess.run([sys.executable, "-c", f"import kernelderby.{module}"], check=True, timeout=60)
