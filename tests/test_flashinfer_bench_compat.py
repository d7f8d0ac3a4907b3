"""This checkout, read by flashinfer-bench's own classes: no GPU, nothing of ours between them and the files.

The random weights of one MoE workload are 1.4 GB of fp8, which flashinfer-bench draws in float32; so generation runs
in full for the smallest workload of each definition, where that draws no more than MOST_DRAWN numbers, and for other
workloads with the constant axes cut to 128 (the variable axes keep their sizes unless that draws more than MOST_DRAWN;
the tensors that come from the blobs keep their full shapes always): for all of the MoE, for the two smallest of every
other definition, since the largest hold gigabytes.
"""

import ast
import importlib.util
import json
import math
import shutil
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog

torch = pytest.importorskip("torch")

CHECKOUT = Path(__file__).resolve().parent.parent
CATALOG = Catalog.open(CHECKOUT)
MOE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
MOST_DRAWN = 1 << 27  # as many as a CPU draws in a second


@pytest.fixture(scope="module", autouse=True)
def needs_flashinfer_bench():
    """Imported where these tests run alone: it takes seconds, and every process of tests collects this file."""
    pytest.importorskip("flashinfer_bench")


def drawn(workload):
    """How many random numbers a workload's inputs hold."""
    definition = CATALOG.definition(workload.definition)
    sizes = definition.sizes(workload.axes)
    return sum(
        math.prod(sizes[axis] for axis in definition.inputs[name].shape or ())
        for name, spec in workload.inputs.items()
        if spec["type"] == "random"
    )


def smallest(name, count):
    return sorted(CATALOG.workloads(name), key=drawn)[:count]


SMALLEST = [workload for name in CATALOG.definitions for workload in smallest(name, 1)]
SAMPLE = [workload for name in CATALOG.definitions for workload in smallest(name, None if name == MOE else 2)]


def workload_id(workload):
    return "-".join(f"{axis}{size}" for axis, size in workload.axes.items()) + "-" + workload.uuid[:8]


@pytest.fixture(scope="module")
def trace_set():
    from flashinfer_bench.data import TraceSet

    return TraceSet.from_path(str(CHECKOUT))


@pytest.fixture(scope="module")
def packed_root(tmp_path_factory):
    """A copy of the set with the blobs of these workloads made: the checkout itself may not have them."""
    from kernelderby.measure.judge.blobs import pack_blobs

    root = tmp_path_factory.mktemp("packed")
    for part in ("definitions", "workloads"):
        shutil.copytree(CHECKOUT / part, root / part)
    taken = {workload.uuid for workload in (*SAMPLE, *SMALLEST)}
    for path in root.glob("workloads/*/*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["workload"]["uuid"] in taken))
    pack_blobs(Catalog.open(root), check=False)
    return root


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


def fib_workload(trace_set, workload):
    return next(
        trace.workload for trace in trace_set.workloads[workload.definition] if trace.workload.uuid == workload.uuid
    )


def test_it_loads_every_definition_workload_solution_and_trace(trace_set):
    assert set(trace_set.definitions) == set(CATALOG.definitions)
    solutions = {solution.name for of_one in trace_set.solutions.values() for solution in of_one}
    assert solutions == set(CATALOG.solutions)
    for name in CATALOG.definitions:
        assert {trace.workload.uuid for trace in trace_set.workloads[name]} == {
            workload.uuid for workload in CATALOG.workloads(name)
        }
        assert len(trace_set.traces.get(name, [])) == len(CATALOG.traces(name))


def test_the_page_says_what_report_best_and_apply_accept():
    spec = importlib.util.spec_from_file_location("limits", CHECKOUT / "scripts" / "flashinfer_bench_limits.py")
    limits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(limits)
    page = (CHECKOUT / "docs" / "flashinfer_bench.md").read_text(encoding="utf-8")
    written = page.partition("<!-- python scripts/flashinfer_bench_limits.py -->\n")[2].partition("<!-- /python -->")[0]
    assert written == limits.table(CHECKOUT), "stale: python scripts/flashinfer_bench_limits.py"


def test_apply_takes_every_workload_that_passed_with_the_limits_that_the_page_gives(trace_set):
    from flashinfer_bench.apply import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.table import ApplyTable

    limits = ApplyConfigRegistry(default=ApplyConfig(max_atol=1e30, max_rtol=1e30))
    table = ApplyTable._build(trace_set, limits)
    for name, rows in trace_set.traces.items():
        passed = {tuple(sorted(row.workload.axes.items())) for row in rows if row.evaluation.status.value == "PASSED"}
        assert len(table.index.get(name, {})) == len(passed) > 0


def test_tags_are_of_its_namespaces(trace_set):
    allowed = {"status": {"verified", "unverified"}, "stage": {"prefill", "decode"}}
    passed = {
        (row.definition, CATALOG.solutions[row.solution].author)
        for row in CATALOG.traces()
        if row.status == "passed" and row.solution in CATALOG.solutions
    }
    for name, definition in trace_set.definitions.items():
        for tag in definition.tags:
            namespace, _, value = tag.partition(":")
            assert tag == "fused" or namespace in ("status", "stage", "model", "quantization", "fi_api", "ep"), tag
            assert value in allowed.get(namespace, {value}), tag
        libraries = {author for found, author in passed if found == name} - {"kernelderby", "baseline", "torch"}
        assert libraries or "status:verified" not in definition.tags, f"{name}: no library's row passed"


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would lie in
        return False


@pytest.mark.filterwarnings("ignore:cutlass:DeprecationWarning")  # of what FlashInfer imports
@pytest.mark.parametrize("name", CATALOG.solutions)
def test_it_builds_every_solution_whose_modules_are_installed(trace_set, name):
    from flashinfer_bench.compile import BuilderRegistry

    solution = CATALOG.solution(name)
    missing = [module for module in solution.requires.modules if not installed(module)]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}, not installed here")
    theirs = next(one for one in trace_set.solutions[solution.definition] if one.name == name)
    runnable = BuilderRegistry.get_instance().build(trace_set.definitions[solution.definition], theirs)
    assert runnable.metadata.destination_passing_style == solution.destination_passing_style


def test_it_builds_every_reference(trace_set):
    from flashinfer_bench.compile import BuilderRegistry

    for name in CATALOG.definitions:
        assert callable(BuilderRegistry.get_instance().build_reference(trace_set.definitions[name])), name


@pytest.mark.parametrize("workload", SAMPLE, ids=workload_id)
def test_it_loads_every_workloads_blob_at_full_shape_and_generates_the_rest_with_constant_axes_cut(
    trace_set, packed_root, workload
):
    from flashinfer_bench.bench.utils import gen_inputs, load_safetensors

    definition, theirs = trace_set.definitions[workload.definition], fib_workload(trace_set, workload)
    tensors = load_safetensors(definition, theirs, packed_root)  # checks shapes and dtypes
    assert set(tensors) == {name for name, spec in workload.inputs.items() if spec["type"] == "safetensors"}
    cut = definition.model_dump()
    for axis in cut["axes"].values():
        if axis["type"] == "const":
            axis["value"] = min(axis["value"], 128)
    if drawn(workload) > MOST_DRAWN:
        theirs = theirs.model_copy(update={"axes": {axis: min(size, 128) for axis, size in theirs.axes.items()}})
    inputs = gen_inputs(type(definition).model_validate(cut), theirs, "cpu", tensors)
    check_inputs(definition, workload, inputs)


@pytest.mark.parametrize("workload", SMALLEST, ids=workload_id)
def test_it_generates_every_input_of_the_smallest_workload_at_full_shape(trace_set, packed_root, workload):
    from flashinfer_bench.bench.utils import gen_inputs, load_safetensors

    definition, theirs = trace_set.definitions[workload.definition], fib_workload(trace_set, workload)
    device = "cpu" if drawn(workload) <= MOST_DRAWN else "meta"  # without contents
    inputs = gen_inputs(definition, theirs, device, load_safetensors(definition, theirs, packed_root))
    check_inputs(definition, workload, inputs)
    for value, shape in zip(inputs, definition.get_input_shapes(workload.axes), strict=True):
        assert shape is None or list(value.shape) == list(shape)


def test_it_judges_every_operator_by_its_tensors(trace_set):
    """flashinfer-bench takes every operator with the op_type "sampling" for one that draws tokens from `probs`."""
    from flashinfer_bench.bench.evaluators.registry import resolve_evaluator

    found = {name: resolve_evaluator(trace_set.definitions[name]).__name__ for name in CATALOG.definitions}
    assert found == dict.fromkeys(CATALOG.definitions, "DefaultEvaluator") | {MOE: "LowBitEvaluator"}


def check_inputs(definition, workload, inputs):
    """One value for each input, in order: the scalars as given, no block scale that is not positive."""
    assert len(inputs) == len(definition.inputs)
    for (name, spec), value in zip(definition.inputs.items(), inputs, strict=True):
        if name in workload.scalars:
            assert value == workload.scalars[name]
        else:
            assert str(value.dtype) == f"torch.{spec.dtype.value}"
        if name.endswith("_scale") and torch.as_tensor(value).device.type != "meta":
            assert bool((torch.as_tensor(value) > 0).all()), f"{name} must be positive"


def test_parameters_are_the_definitions_inputs_in_order():
    """flashinfer-bench calls by position, flashinfer's trace_apply by keyword: so names and order must be these."""
    for solution in CATALOG.solutions.values():
        if solution.entry_point.partition("::")[0].endswith(".py"):  # others have no Python signature
            check_parameters(solution)


def check_parameters(solution):
    file, function = solution.entry_point.split("::")
    found = next(
        node
        for node in ast.parse(solution.sources[file]).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    definition = CATALOG.definition(solution.definition)
    expected = [*definition.inputs, *(definition.outputs if solution.destination_passing_style else [])]
    assert [argument.arg for argument in found.args.args] == expected, solution.name
    assert not (found.args.vararg or found.args.kwonlyargs or found.args.defaults)
    assert found.args.kwarg is None or solution.setup  # what setup() prepared; flashinfer-bench passes none


def test_the_calling_style_is_always_written_and_no_python_file_is_imported_by_a_bare_name():
    """The default of destination_passing_style is true in flashinfer-bench and false in flashinfer, whose loader also
    imports a single file, of no package: what lies beside it is found through its __path__ (tests/test_common.py). What
    is imported that way is of that package, so it may name its neighbours by a dot; the entry file may not."""
    for solution in CATALOG.solutions.values():
        packed = json.loads(solution.json_path.read_text())
        assert isinstance(packed["spec"]["destination_passing_style"], bool), solution.name
        check_imports(solution, packed["spec"]["entry_point"].partition("::")[0])


def check_imports(solution, entry):
    modules = {path.removesuffix(".py") for path in solution.sources if path.endswith(".py")}
    for path, text in solution.sources.items():
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Import):
                    assert not modules & {alias.name.split(".")[0] for alias in node.names}, path
                if isinstance(node, ast.ImportFrom):
                    assert node.level == 0 or (node.level == 1 and path != entry), path
                    assert node.level or node.module.split(".")[0] not in modules, path


def test_everything_is_described():
    """flashinfer-bench's main branch warns about an empty description."""
    for definition in CATALOG.definitions.values():
        data = json.loads(definition.path.read_text())
        assert data["description"], definition.path
        for part in ("axes", "inputs", "outputs"):
            assert all(spec.get("description") for spec in data[part].values()), (definition.path, part)
