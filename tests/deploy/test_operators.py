"""The operators of an exported package on a CPU: every contract in every form, and the compiler's questions."""

import importlib
import logging
import sys
import threading

import pytest

pytest.importorskip("torch")

import torch

from kernelderby.catalog import Catalog
from kernelderby.deploy.contents import contents
from kernelderby.deploy.winners import AllWinners, Winners, kind_of
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import module_of
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.rows.measurement import Status
from tests.conftest import CHECKOUT
from tests.deploy.conftest import CHOICE_LOSS

CPU = torch.device("cpu")
LARGE = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"  # 1.4 GB of weights
NAMES = sorted(Catalog.open(CHECKOUT).definitions)


def small_inputs(definition):
    module = module_of(definition)
    constants = {axis: size for axis, size in definition.axes.items() if size is not None}
    [case] = small_cases(definition, {**module.SMALL_AXES, **constants}, [{}], 1)
    return module, InputMaker(definition, module, case, CPU, CHECKOUT).make()


@pytest.mark.parametrize("name", [name for name in NAMES if name != LARGE])
def test_every_operator_gives_what_its_reference_gives_in_every_form(package, catalog, name):
    definition = catalog.definition(name)
    module, inputs = small_inputs(definition)

    def is_right(outputs):
        return judge(definition, module, inputs_before, outputs).status is Status.PASSED

    inputs_before = {
        name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
    }

    returned = getattr(package, name)(*inputs.values())
    returned = returned if isinstance(returned, tuple) else (returned,)
    outputs = dict(zip(definition.outputs, returned, strict=True))
    assert is_right(outputs)
    for each, value in inputs_before.items():
        assert not isinstance(value, torch.Tensor) or inputs[each].view(torch.uint8).equal(value.view(torch.uint8))

    written = {each: torch.full_like(tensor, 0) for each, tensor in outputs.items()}
    assert getattr(package, f"{name}_out")(*inputs.values(), *written.values()) is None
    assert is_right(written)

    operator = package.OPERATORS[name]
    if operator.in_place:
        new = getattr(package, f"{name}_")(*inputs.values())
        new = list(new) if isinstance(new, tuple) else [new]
        shared = operator.in_place
        outputs = {each: inputs[shared[each]] if each in shared else new.pop(0) for each in definition.outputs}
        assert is_right(outputs)


@pytest.mark.parametrize("name", NAMES)
def test_fakes_give_the_shapes_and_types_of_the_contract(package, catalog, name):
    """With the axes of a shape that was measured, and without memory."""
    definition = catalog.definition(name)
    sizes = definition.sizes(catalog.workloads(name)[0].axes)
    arguments = [_fake(spec, sizes) for spec in definition.inputs.values()]
    returned = getattr(package, name)(*arguments)
    returned = returned if isinstance(returned, tuple) else (returned,)
    for spec, tensor in zip(definition.outputs.values(), returned, strict=True):
        assert list(tensor.shape) == [sizes[axis] for axis in spec.shape]
        assert tensor.dtype == getattr(torch, spec.dtype) and tensor.device.type == "meta"


def _fake(spec, sizes):
    if spec.shape is None:
        return 2 if spec.dtype.startswith("int") else 1.0
    return torch.empty([sizes[axis] for axis in spec.shape], dtype=getattr(torch, spec.dtype), device="meta")


def test_schemas_say_what_is_written(package):
    def schema(name):
        return str(getattr(package, name)._schema).removeprefix("kernelderby_winners::")

    assert schema("rms_norm") == "rms_norm(Tensor hidden_states, Tensor weight, float eps) -> Tensor"
    assert schema("rms_norm_out") == (
        "rms_norm_out(Tensor hidden_states, Tensor weight, float eps, Tensor(a!) output) -> ()"
    )
    assert schema("fused_add_rms_norm_") == (
        "fused_add_rms_norm_(Tensor(a!) hidden_states, Tensor(b!) residual, Tensor weight, float eps) -> ()"
    )
    assert schema("topk_filter").startswith("topk_filter(Tensor logits, SymInt top_k, float filter_value)")
    assert "rms_norm_" not in package.__all__


@pytest.fixture
def row():
    return torch.randn(3, 64).bfloat16(), torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16(), 1e-6


@pytest.mark.parametrize("form", ["", "_out", "_"])
def test_every_form_passes_torchs_opcheck(package, row, form):
    hidden, residual, weight, eps = row
    given = [hidden, residual, weight, eps]
    given += [torch.empty_like(hidden), torch.empty_like(hidden)] if form == "_out" else []
    checked = torch.library.opcheck(getattr(package, f"fused_add_rms_norm{form}"), given)
    assert set(checked.values()) == {"SUCCESS"}, checked


@pytest.mark.parametrize("name", ["block_scaled_mm", "block_scaled_mm_bf16", "per_token_group_quant_fp8"])
@pytest.mark.parametrize("form", ["", "_out"])
def test_opcheck_of_fp8(package, catalog, name, form):
    """All but its test of the schema, which multiplies FP8 tensors: torch has no such product. That inputs stay as they
    are is held by test_every_operator_gives_what_its_reference_gives_in_every_form."""
    definition = catalog.definition(name)
    given = list(small_inputs(definition)[1].values())
    operator = package.OPERATORS[name]
    if form:
        given += map(operator.layout(given).empty, definition.outputs)
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    checked = torch.library.opcheck(getattr(package, f"{name}{form}"), given, test_utils=tests)
    assert checked == dict.fromkeys(tests, "SUCCESS")


def test_a_compiled_graph_is_whole_and_right_at_other_sizes(package, row):
    _, _, weight, eps = row

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def layer(hidden, residual):
        residual = residual.clone()
        hidden = package.rms_norm(hidden, weight, eps)
        package.fused_add_rms_norm_(hidden, residual, weight, eps)
        return hidden, residual

    for rows in (3, 5):
        hidden, residual = torch.randn(rows, 64).bfloat16(), torch.randn(rows, 64).bfloat16()
        normed = package.rms_norm(hidden, weight, eps)
        expected = package.fused_add_rms_norm(normed, residual, weight, eps)
        for one, other in zip(layer(hidden, residual), expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda x, y, w: (x.float(), y, w), "hidden_states is torch.float32, must be bfloat16"),
        (lambda x, y, w: (x[None], y, w), r"hidden_states has 3 axes, must have \[num_tokens, hidden_size\]"),
        (lambda x, y, w: (x, y[:2], w), "residual has num_tokens 2, must be 3"),
        (lambda x, y, w: (x, y, w[:63]), "weight has hidden_size 63, must be 64"),
        (lambda x, y, w: (x, y, w.to("meta")), "weight is on meta, must be on cpu"),
    ],
)
def test_what_the_contract_does_not_allow_is_one_line(package, row, change, problem):
    hidden, residual, weight, eps = row
    with pytest.raises(ValueError, match=f"^fused_add_rms_norm: {problem}$"):
        package.fused_add_rms_norm(*change(hidden, residual, weight), eps)


def test_constraints_between_axes_are_checked(package):
    fp8 = torch.zeros(2, 256, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="the sizes do not fit: k == 128"):
        package.block_scaled_mm(fp8, torch.ones(2, 3), fp8[:, :256].repeat(64, 1), torch.ones(1, 3))


def test_slices_and_odd_addresses_go_through_a_copy(package, row):
    hidden, residual, weight, eps = row
    wide = torch.randn(3, 193).bfloat16()
    part = wide[:, 1:65]  # neither contiguous nor at a multiple of 16 bytes
    torch.testing.assert_close(package.rms_norm(part, weight, eps), package.rms_norm(part.clone(), weight, eps))
    expected = package.fused_add_rms_norm(part.clone(), residual, weight, eps)
    package.fused_add_rms_norm_(part, residual, weight, eps)
    torch.testing.assert_close(wide[:, 1:65], expected[0])
    torch.testing.assert_close(residual, expected[1])


def test_the_copy_of_a_whole_pool_is_a_line(package, monkeypatch, caplog):
    """Caches as halves of vLLM's, [blocks, 2, ...]: right, and a server would not see what it costs."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    monkeypatch.setattr(solutions, "_told", set())
    monkeypatch.setattr(operators, "LARGE", 4 * 16 * 2 * 128 * 2)
    pool, rows = torch.zeros(4, 2, 16, 2, 128).bfloat16(), torch.randn(3, 2, 128).bfloat16()
    for _ in range(2):
        package.reshape_and_cache_(rows, rows, *pool.unbind(1), torch.tensor([0, 17, 63]))
    assert pool.view(4, 2, 16, 2, 128)[[0, 1, 3], :, [0, 1, 15]].equal(rows[:, None].expand(3, 2, 2, 128))
    assert [record.message.split(",")[0] for record in caplog.records if "copies" in record.message] == [
        "reshape_and_cache copies key_cache",
        "reshape_and_cache copies value_cache",
    ]


# ----------------------------------------------------------------------------- what runs, told by made-up solutions


class Told:
    """Solutions that note their calls, as solutions.function_of would load them."""

    def __init__(self, package, monkeypatch, name, kinds, refusing=(), problem=ValueError):
        self.calls, self.lines = [], []
        self.operators = importlib.import_module(f"{package.__name__}.operators")
        about = dict(package.OPERATORS[name].about)
        about["solutions"] = {each: {"kind": kind, "in_place": {}, "returns": False} for each, kind in kinds.items()}
        about["points"] = [[[4, 64], [float(place + 1) for place in range(len(kinds))]]]
        self.operator = self.operators.ServedOperator(name, about)
        monkeypatch.setattr(self.operators, "can_run", lambda about, device, is_measured: True)
        monkeypatch.setattr(
            self.operators, "function_of", lambda solution, about: self._function(solution, refusing, problem)
        )
        monkeypatch.setattr(self.operators, "tell", lambda line, about=None: self.lines.append(line))

    def _function(self, solution, refusing, problem):
        def run(*given):
            self.calls.append(solution)
            if solution in refusing:
                raise problem("not this one")
            given[-1].fill_(1)

        return run

    def __call__(self, hidden, weight, eps):
        output = torch.zeros_like(hidden)
        self.operator([hidden, weight, eps], {"output": output})
        return output


def test_a_solution_that_refuses_a_shape_is_passed_over_there_once(package, monkeypatch, row):
    hidden, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "theirs": "library", "torch": "plain"}, {"ours"})
    assert told(hidden, weight, eps).eq(1).all() and told(hidden, weight, eps).eq(1).all()
    assert told.calls == ["ours", "theirs", "theirs"]
    assert [line for line in told.lines if "refuses" in line] == [
        "rms_norm at {'num_tokens': 3, 'hidden_size': 64}: ours refuses (not this one); the next one runs"
    ]


def test_a_kernel_that_triton_cannot_compile_there_is_passed_over(package, monkeypatch, row):
    """An unmeasured width may not fit: a server goes on with the next one. Other errors of a kernel are not hidden."""
    hidden, _, weight, eps = row
    out_of_resources = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"}, {"ours"}, out_of_resources)
    assert told(hidden, weight, eps).eq(1).all() and told.calls == ["ours", "torch"]
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"}, {"ours"}, RuntimeError)
    with pytest.raises(RuntimeError, match="not this one"):
        told(hidden, weight, eps)


def test_a_server_that_runs_for_days_remembers_the_latest_shapes_alone(package, monkeypatch, row):
    _, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"})
    monkeypatch.setattr(told.operators, "KEPT", 4)
    for tokens in (1, 2, 3, 4, 1, 5, 6):
        told(torch.randn(tokens, 64).bfloat16(), weight, eps)
    assert [key[1][0] for _, key in told.operator._warm] == [4, 1, 5, 6]
    assert len(told.operator._orders) == 4


def test_threads_remember_shapes_at_the_same_time(package, monkeypatch, row):
    """Two threads of a server evict the oldest shape at once."""
    _, _, weight, eps = row
    told, problems = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"}), []
    monkeypatch.setattr(told.operators, "KEPT", 4)
    rows = [torch.randn(tokens, 64).bfloat16() for tokens in range(1, 40)]

    def serve(first):
        try:
            for call in range(400):
                told(rows[(first + 7 * call) % len(rows)], weight, eps)
        except (KeyError, RuntimeError) as problem:
            problems.append(problem)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=serve, args=(each,)) for each in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []


def test_a_solution_that_refuses_every_shape_is_one_line(package, monkeypatch, row, caplog):
    """A server meets a new number of tokens in most steps, for days."""
    _, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"}, {"ours"})
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    monkeypatch.setattr(told.operators, "tell", solutions.tell)
    monkeypatch.setattr(solutions, "_told", {"kernelderby_winners was measured on NVIDIA H200"})
    before = len(solutions._told)
    for tokens in range(1, 6):
        told(torch.randn(tokens, 64).bfloat16(), weight, eps)
    assert [record.message.split(" (")[0] for record in caplog.records if "refuses" in record.message] == [
        "rms_norm at {'num_tokens': 1, 'hidden_size': 64}: ours refuses"
    ]
    assert len(solutions._told) == before + 2  # the GPU's line, too


def test_nothing_runs_where_there_is_no_token(package, monkeypatch, row):
    """An idle rank's step: a kernel of no block is an error in most libraries."""
    hidden, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"theirs": "library", "torch": "plain"})
    assert told(hidden[:0], weight, eps).shape == (0, 64) and told.calls == []


def test_a_solution_that_returns_its_outputs_runs_in_every_form(package, monkeypatch):
    """As vLLM's Triton experts do. A new tensor is handed on as it is; one that the caller holds gets a copy."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["fused_add_rms_norm"].about)
    about["solutions"] = {"theirs": {"kind": "library", "in_place": {}, "returns": True}}
    about["points"] = [[[4, 64], [1.0]]]
    operator, made = operators.ServedOperator("fused_add_rms_norm", about), []

    def run(hidden, residual, weight, eps):
        new = hidden + 1, residual + 2
        made.extend(each.data_ptr() for each in new)
        return new

    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    monkeypatch.setattr(operators, "function_of", lambda solution, about: run)
    hidden, residual, weight = torch.zeros(4, 64).bfloat16(), torch.zeros(4, 64).bfloat16(), torch.ones(64).bfloat16()
    functional, _ = operators._functional(operator, "")
    returned = functional(hidden, residual, weight, 1e-6)
    assert [each.data_ptr() for each in returned] == made and returned[0].eq(1).all() and returned[1].eq(2).all()

    held = [torch.zeros(4, 64).bfloat16() for _ in operator.outputs]
    operators._out(operator)[0](hidden, residual, weight, 1e-6, *held)
    assert held[0].eq(1).all() and held[1].eq(2).all() and not hidden.any() and not residual.any()

    operators._functional(operator, "_")[0](hidden, residual, weight, 1e-6)
    assert {
        name: int(hidden[0, 0] if source == "hidden_states" else residual[0, 0])
        for name, source in operator.in_place.items()
    } == dict(zip(operator.outputs, (1, 2), strict=True))


KEPT_BUFFER = torch.empty(3, 64).bfloat16()


@pytest.mark.parametrize(
    "returned",
    [
        lambda hidden: hidden[:],
        lambda hidden: hidden.detach(),
        lambda hidden: KEPT_BUFFER.copy_(hidden),
        lambda hidden: KEPT_BUFFER.copy_(hidden)[:],
        lambda hidden: KEPT_BUFFER.copy_(hidden).detach(),
        lambda hidden: hidden.clone().view(-1).view(hidden.shape),
    ],
    ids=["view of an input", "alias of an input", "buffer", "view of a buffer", "alias of a buffer", "view"],
)
def test_a_tensor_that_a_solution_or_the_caller_keeps_is_copied(package, monkeypatch, returned):
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["rms_norm"].about)
    about["solutions"] = {"theirs": {"kind": "library", "in_place": {}, "returns": True}}
    about["points"] = [[[3, 64], [1.0]]]
    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    monkeypatch.setattr(operators, "function_of", lambda solution, about: lambda hidden, weight, eps: returned(hidden))
    call, _ = operators._functional(operators.ServedOperator("rms_norm", about), "")
    weight, given = torch.ones(64).bfloat16(), [torch.full((3, 64), float(each)).bfloat16() for each in (1, 2)]
    found = [call(each, weight, 1e-6) for each in given]
    for number, each in enumerate(found, 1):
        assert each.eq(number).all()
        assert each.data_ptr() not in [other.data_ptr() for other in (*given, KEPT_BUFFER)]


@pytest.mark.parametrize("form", ["", "_out", "_"])
def test_outputs_that_share_memory_with_each_other_or_with_inputs_are_right(package, monkeypatch, form):
    """One tensor returned twice, and the inputs returned in each other's place."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["fused_add_rms_norm"].about)
    about["solutions"] = {"theirs": {"kind": "library", "in_place": {}, "returns": True}}
    about["points"] = [[[4, 64], [1.0]]]
    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    weight = torch.ones(64).bfloat16()

    def outputs_of(run):
        monkeypatch.setattr(operators, "function_of", lambda solution, about: run)
        operator = operators.ServedOperator("fused_add_rms_norm", about)
        call = operators._out(operator)[0] if form == "_out" else operators._functional(operator, form)[0]
        hidden, residual = torch.full((4, 64), 1.0).bfloat16(), torch.full((4, 64), 2.0).bfloat16()
        held = [torch.zeros_like(hidden) for _ in range(2)]
        found = call(hidden, residual, weight, 1e-6, *(held if form == "_out" else ()))
        names = {"hidden_states": hidden, "residual": residual}
        updated = [names[source] for source in operator.in_place.values()]
        outputs = {"": found, "_out": held, "_": updated}[form]
        assert len({each.data_ptr() for each in outputs}) == 2
        return [int(each[0, 0]) for each in outputs]

    def twice(hidden, residual, weight, eps):
        both = hidden + residual
        return both, both

    assert outputs_of(twice) == [3, 3]
    assert outputs_of(lambda hidden, residual, weight, eps: (residual, hidden)) == [2, 1]


def test_an_output_may_be_an_input_that_the_solution_reads_to_its_end(package):
    """The norm into the residual, and the new residual beside it."""
    hidden, residual = torch.randn(3, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    weight = torch.ones(64).bfloat16()
    expected = package.fused_add_rms_norm(hidden, residual, weight, 1e-6)
    beside = torch.empty_like(hidden)
    package.fused_add_rms_norm_out(hidden, residual, weight, 1e-6, residual, beside)
    assert residual.equal(expected[0]) and beside.equal(expected[1])


def test_a_returned_tensor_of_another_type_or_an_input_is_not_handed_on(package, monkeypatch, row):
    hidden, _, weight, eps = row
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["rms_norm"].about)
    kinds = {"float": "library", "same": "library"}
    about["solutions"] = {each: {"kind": kind, "in_place": {}, "returns": True} for each, kind in kinds.items()}
    about["points"] = [[[4, 64], [1.0, 2.0]]]
    functions = {"float": lambda hidden, weight, eps: hidden.float(), "same": lambda hidden, weight, eps: hidden}
    lines = []
    monkeypatch.setattr(operators, "can_run", lambda about, device, is_measured: True)
    monkeypatch.setattr(operators, "function_of", lambda solution, about: functions[solution])
    monkeypatch.setattr(operators, "tell", lambda line, about=None: lines.append(line))
    returned = operators._functional(operators.ServedOperator("rms_norm", about), "")[0](hidden, weight, eps)
    assert returned.equal(hidden) and returned.data_ptr() != hidden.data_ptr()
    [line] = [line for line in lines if "refuses" in line]
    assert "float refuses (rms_norm: output is torch.float32, must be bfloat16)" in line


@pytest.mark.parametrize(("tokens", "functional", "updating"), [(4, "theirs", "ours"), (4096, "theirs", "ours")])
def test_each_form_counts_the_copies_that_it_costs_a_solution(package, tokens, functional, updating):
    """theirs writes new outputs and is a little faster alone; in place it would cost two copies, ours in the other."""
    operators = importlib.import_module(f"{package.__name__}.operators")
    about = dict(package.OPERATORS["fused_add_rms_norm"].about)
    shared = about["in_place"]
    about["solutions"] = {"ours": {"kind": "own", "in_place": shared}, "theirs": {"kind": "library", "in_place": {}}}
    about["points"] = [[[4, 2048], [2.2, 2.0]], [[4096, 2048], [19.0, 18.0]]]
    operator = operators.ServedOperator("fused_add_rms_norm", about)
    both, sizes = {"ours", "theirs"}, (tokens, 2048)
    assert operator._selector(False, ()).order(sizes, both)[0] == functional
    assert operator._selector(True, ()).order(sizes, both)[0] == updating
    [_, [_, (ours, theirs)]] = operator.points[True]  # two copies of 16 MiB, each read and written
    assert ours == 19.0 and theirs == pytest.approx(18 + 2 * (1.04 + 2**25 / operators.DATA["bytes_per_us"]))


def test_a_pool_is_never_copied_back_for_an_update(package):
    copies = importlib.import_module(f"{package.__name__}.copies")
    about = {**package.OPERATORS["reshape_and_cache"].about, "axes": ["num_tokens", "num_heads", "head_dim"]}
    shared = about["in_place"]
    about |= {
        "solutions": {"ours": {"kind": "own", "in_place": shared}, "torch": {"kind": "plain", "in_place": {}}},
        "points": [[[8, 8, 128], [1, 2]]],
    }
    gpu = {"bytes_per_us": 1e6, "launch_us": 1.0}
    assert copies.with_copies(about, gpu, False) == about["points"]  # of unknown size, and all copy it
    assert copies.with_copies(about, gpu, True)[0][1][0] == 1 < 1e9 < copies.with_copies(about, gpu, True)[0][1][1]


def test_in_a_capture_only_what_ran_before_runs(package, monkeypatch, row):
    """Nothing is compiled, loaded or tuned there."""
    hidden, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"})
    capturing = [True]
    monkeypatch.setattr(told.operators.torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(told.operators.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(told.operator, "sizes", lambda arguments: {"num_tokens": 3, "hidden_size": 64})
    monkeypatch.setattr(told.operator, "first", lambda arguments: _OnGpu())
    monkeypatch.setattr(told.operator, "_order", lambda shape, device, in_place: ["ours", "torch"])
    told(hidden, weight, eps)
    assert told.calls == ["torch"] and "did not run before the capture" in told.lines[0]
    capturing[0] = False
    told(hidden, weight, eps)
    capturing[0] = True
    told(hidden, weight, eps)
    assert told.calls == ["torch", "ours", "ours"]


class _OnGpu:
    def __init__(self, index=0):
        self.device = torch.device("cuda", index)


def test_tensors_of_another_gpu_run_on_theirs(package, monkeypatch, row):
    """A library's launch goes to the current device, whatever its tensors lie on."""
    hidden, _, weight, eps = row
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "torch": "plain"})
    current = [0]

    class Guard:
        def __init__(self, device):
            self.index = device.index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(told.operators.torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(told.operators.torch.cuda, "device", Guard)
    monkeypatch.setattr(told.operators.torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(told.operator, "sizes", lambda arguments: {"num_tokens": 3, "hidden_size": 64})
    monkeypatch.setattr(told.operator, "first", lambda arguments: _OnGpu(1))
    monkeypatch.setattr(told.operator, "_order", lambda shape, device, in_place: ["ours"] if current == [0, 1] else [])
    told(hidden, weight, eps)
    assert told.calls == ["ours"] and current == [0]


def test_on_another_gpu_its_own_kernels_do_not_run_and_one_line_says_so(package, monkeypatch):
    told = Told(package, monkeypatch, "rms_norm", {"ours": "own", "theirs": "library", "torch": "plain"})
    able = []
    monkeypatch.setattr(told.operators, "can_run", lambda about, device, is_measured: able.append(is_measured) or True)
    monkeypatch.setattr(told.operators.torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")
    told.operator.order({"num_tokens": 3, "hidden_size": 64}, torch.device("cuda", 0))
    assert able == [False] * 3  # own kernels need True, see solutions.can_run
    line = "kernelderby_winners was measured on NVIDIA H200; on NVIDIA H100 PCIe libraries or plain torch run"
    assert told.lines == [line]


def test_on_a_cpu_plain_torch_runs_and_one_line_says_so(package, row, caplog):
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    solutions._told.clear()
    hidden, _, weight, eps = row
    package.OPERATORS["rms_norm"]._orders.clear()
    with caplog.at_level(logging.WARNING):
        package.rms_norm(hidden, weight, eps)
        package.rms_norm(hidden[:2], weight, eps)
    assert [record.message for record in caplog.records] == [
        "kernelderby_winners was measured on NVIDIA H200; on a CPU libraries or plain torch run"
    ]


def test_a_library_that_is_not_installed_does_not_run_and_none_is_imported_to_know(package, monkeypatch, tmp_path):
    """On a GPU with the wheel and torch alone, `fla.modules` and `vllm._C` have no parent to look in."""
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    solutions.is_installed.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_library" / "folder").mkdir(parents=True)
    (tmp_path / "some_library" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "some_library" / "folder" / "_C.py").touch()

    def runs(*modules):
        about = {"kind": "library", "capability": [None, None], "modules": modules}
        return solutions.can_run(about, torch.device("cuda", 0), True)

    assert runs("torch", "some_library", "some_library.folder._C")
    assert not runs("no_library.modules") and not runs("some_library._C") and not runs("torch", "no_library")


def test_every_solution_of_ours_loads_from_a_package(package, catalog, monkeypatch):
    """One that opens a file which the package leaves out would be passed over, with a line of the log alone."""
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    monkeypatch.setattr(solutions, "_functions", {})
    lines = []
    monkeypatch.setattr(solutions, "tell", lines.append)
    pytest.importorskip("triton")
    fit = [each for each in catalog.solutions.values() if not each.setup and each.language in ("python", "triton")]
    ours = [each for each in fit if kind_of(each) == "own"]
    found = [Winners(catalog.definition(each.definition), (each,), (), {}, CHOICE_LOSS, {}) for each in ours]
    files = contents(AllWinners(("NVIDIA H200",), "", ("", ""), tuple(found), {}))
    for path, data in files.items():
        if path.startswith("solutions/"):
            written = solutions.FOLDER.parent / path
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(data)
    for each in ours:
        solutions.function_of(each.name, {"entry": each.entry_point})
    assert lines == [] and len(ours) > 30


def test_the_packages_command_lists_what_loads(package, monkeypatch, capsys):
    command = importlib.import_module(f"{package.__name__}.__main__")
    monkeypatch.setattr(command, "OPERATORS", {name: package.OPERATORS[name] for name in ("rms_norm", "l2_norm")})
    monkeypatch.setattr(command, "check_libraries", list)
    monkeypatch.setattr(
        command, "function_of", lambda name, about: None if name == "l2_norm_baseline" else command.main
    )
    command.main()
    *_, norm, other = capsys.readouterr().out.splitlines()
    assert norm.split() == ["rms_norm", "0", "shapes", "rms_norm_baseline"] and other.split() == [
        "l2_norm",
        "0",
        "shapes",
    ]


def test_a_cuda_library_is_taken_from_the_package_and_never_compiled(package):
    solutions = importlib.import_module(f"{package.__name__}.solutions")
    name = "derby_fused_add_rms_norm"
    about = package.OPERATORS["fused_add_rms_norm"].about["solutions"][name]
    assert solutions.function_of(name, about) is not None
    library = sys.modules[f"{package.__name__}_{name}"].library
    with pytest.raises(ValueError, match="derby_fused_add_rms_norm_sm90a.so is not in this package"):
        library.build("90a")
    built = solutions.FOLDER / name / f"{name}_sm90a.so"
    built.write_bytes(b"")
    assert library.build("90a") == built
    built.unlink()


def test_a_layout_is_found_again_and_others_are_checked(package, row):
    """What a call before allowed is no licence for other types, ranks and sizes."""
    hidden, _, weight, eps = row
    operator = package.OPERATORS["rms_norm"]
    known = operator.layout([hidden, weight, eps])
    assert operator.layout([hidden + 1, weight.clone(), 1e-3]) is known
    assert known.empty("output").shape == hidden.shape and known.empty("output").dtype is torch.bfloat16
    for wrong in (hidden.float(), hidden[:, :-1], hidden[0], hidden.to("meta")):
        with pytest.raises(ValueError, match="^rms_norm: "):
            operator.layout([wrong, weight, eps])
    for _ in range(2):
        with pytest.raises(ValueError, match="^rms_norm: output has num_tokens 2, must be 3$"):
            package.rms_norm_out(hidden, weight, eps, torch.empty_like(hidden)[:2])
