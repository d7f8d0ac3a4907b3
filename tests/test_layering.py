"""Who may import whom: lower never sees higher, and only measure/ sees torch and its kin."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "kernelderby"

# A layer may import the ones to its left (and itself); those in one cell do not see each other.
LAYERS = [("errors",), ("fields", "demangle"), ("trace",), ("hardware",), ("catalog",), ("roofline",), ("profile",),
          ("rank",), ("report",), ("api",), ("measure",), ("cli",), ("__main__",)]
RANK = {name: height for height, cell in enumerate(LAYERS) for name in cell}
MEASURE_MAY = {"errors", "fields", "demangle", "trace", "catalog", "hardware", "roofline",
               "measure"}  # with the rest it meets in files only
MEASURE_ONLY = {"torch", "triton", "safetensors", "flashinfer", "flashinfer_bench", "cupti", "pynvml", "deep_gemm",
                "sgl_kernel"}
ANYWHERE = {"click", "rich", "numpy", "kernelderby"} | set(sys.stdlib_module_names)
EXTRAS = {"matplotlib": "report/plot.py", "pandas": "report/frame.py"}  # where each is imported, inside a function
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def layer(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Dotted names of everything a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_lower_never_imports_higher(path):
    own = layer(path)
    assert own in RANK, f"{path}: {own} stands in no layer; add it to the table"
    for other in our_layers(path):
        assert other == own or RANK[other] < RANK[own], f"{path}: {own} must not import {other}"
        if own == "measure":
            assert other in MEASURE_MAY, f"{path}: measure meets {other} in files only"
        elif other == "measure":
            assert own == "cli", f"{path}: only the command imports measure"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_measure_imports_torch_and_its_kin(path):
    if layer(path) == "measure":
        return
    for name in imports(path):
        top = name.split(".")[0]
        assert top not in MEASURE_ONLY, f"{path}: imports {name}; that belongs into measure/"
        is_extra = EXTRAS.get(top) == path.relative_to(PACKAGE).as_posix()
        assert top in ANYWHERE or is_extra, f"{path}: imports {name}, which is no core dependency"


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.name)
def test_commands_import_heavy_things_inside_the_command(path):
    """At a command module's top only the standard library, click, errors and the group itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else (
            [node.module] if isinstance(node, ast.ImportFrom) else [])
        for name in names:
            assert name in ("click", "kernelderby", "kernelderby.errors") or name.startswith("kernelderby.cli") \
                or name.split(".")[0] in sys.stdlib_module_names, f"{path}: import {name} inside the command"


def loaded_by(statement):
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["cli", "catalog", "catalog.pack", "hardware", "roofline.floors", "rank",
                                    "roofline.operators", "roofline.listing", "report", "report.roofline",
                                    "report.importance"])
def test_importing_it_does_not_load_torch(module):
    assert not loaded_by(f"import kernelderby.{module}") & MEASURE_ONLY


def test_the_group_loads_neither_rich_nor_numpy():
    assert not loaded_by("import kernelderby.cli") & {"rich", "numpy"}
