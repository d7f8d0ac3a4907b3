"""Records the launches of a solution on a workload, on a machine without a GPU. Nothing is launched.

Its tensors are in the CPU's memory and claim to be a GPU's. There are three kinds of records: a Triton launch (the
kernel's intermediate code after inlining, options, grid, arguments), a call of a CudaLibrary (arguments), and a torch
operator that would start a kernel. The second call is recorded, as if a CUDA graph captured it. An argument counts by
its number, or by the input or output to which it points and the byte offset there. The address of a workspace does not
count.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.workloads import workload_of
from kernelderby.measure.certify.cubin import kernels_of
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.inputs import place_of
from kernelderby.measure.wire.replies import LaunchesSeen
from kernelderby.measure.wire.shared import private_set
from kernelderby.measure.worker.build import load_setup, load_solution, solution_module
from kernelderby.measure.worker.candidate import Candidate

_DEVICE, _STREAM, _MULTIPROCESSORS, _CAPABILITY = torch.device("cuda", 0), 64, 132, (9, 0)  # Hopper's
_LOCATION = re.compile(r"\s*loc\(.*\)|^#loc.*$", re.MULTILINE)
# torch functions without a kernel, apart from attributes and methods that are views.
_SILENT = {
    "empty", "empty_like", "empty_strided", "new_empty", "view", "view_as", "reshape", "flatten", "unflatten",
    "unsqueeze", "squeeze", "expand", "narrow", "select", "split", "chunk", "unbind", "transpose", "permute",
    "t", "detach", "as_strided", "size", "stride", "dim", "numel", "data_ptr", "element_size", "is_contiguous",
    "get_device", "storage_offset", "untyped_storage", "nelement", "contiguous", "__getitem__", "__len__",
    "__hash__", "is_floating_point", "type", "requires_grad_", "is_same_size", "tolist", "_set_grad_enabled",
}  # fmt: skip


class _OnGpu(TorchFunctionMode):
    """Tensors of the CPU that claim to be a GPU's. events: gets every operation that would have started a kernel."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__()
        self.told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", str(func))
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__":
            if owner == "device":
                return _DEVICE
            if owner in ("is_cuda", "is_cpu"):
                return owner == "is_cuda"
            return func(*args, **kwargs)
        if name == "get_device":
            return 0
        if name in _SILENT:
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)
        shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else repr(each) for each in args]
        self.told(f"torch {name} {shapes}")
        with torch._C.DisableTorchFunction():
            return func(*args, **{key: "cpu" if key == "device" else value for key, value in kwargs.items()})


class LaunchRecorder:
    """launched: one line for each launch of the last call. exact: identify kernels by machine code instead of
    intermediate code, which takes a second each."""

    def __init__(self, gpu: str, exact: bool) -> None:
        self.exact, self.gpu, self.launched, self._places = exact, gpu, list[str](), list[tuple[int, int, str]]()
        self._digests: dict[Any, str] = {}

    def of_workload(
        self, definition: Definition, solution: Solution, candidate: Candidate, workload: Workload
    ) -> list[str]:
        """The launches of run() in a captured call, after an eager one."""
        case = case_of_workload(definition, workload)
        places = {
            name: case.scalars[name] if spec.shape is None else place_of(spec, case.sizes)
            for name, spec in definition.inputs.items()
        }
        given = {name: place_of(spec, case.sizes) for name, spec in definition.outputs.items()}
        buffers = private_set(places, given, torch.device("cpu"))
        inputs, outputs = buffers.inputs, buffers.outputs
        self._places = [
            (each.data_ptr(), each.data_ptr() + max(1, each.nbytes), name)
            for name, each in (inputs | outputs).items()
            if isinstance(each, torch.Tensor)
        ]
        with self._as_on_a_gpu(solution) as capture:
            prepared, _ = candidate.set_up(inputs, torch.device("cpu"))
            written = outputs if candidate.destination_passing_style else {}
            candidate(inputs, written, prepared)
            self.launched.clear()
            capture()
            candidate(inputs, written, prepared)
        return list(self.launched)

    @contextmanager
    def _as_on_a_gpu(self, solution: Solution) -> Iterator[Callable[[], None]]:
        state = SimpleNamespace(capturing=False)
        properties = SimpleNamespace(
            name=self.gpu,
            multi_processor_count=_MULTIPROCESSORS,
            major=_CAPABILITY[0],
            minor=_CAPABILITY[1],
            L2_cache_size=50 << 20,
            shared_memory_per_block_optin=232448,
            max_threads_per_multi_processor=2048,
        )
        stream = SimpleNamespace(cuda_stream=_STREAM, synchronize=lambda: None, device=_DEVICE)
        none = mock.MagicMock()
        replaced: list[tuple[Any, str, Any]] = [
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "current_stream", lambda *_: stream),
            (torch.cuda, "get_device_name", lambda *_: self.gpu),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "get_device_capability", lambda *_: _CAPABILITY),
            (torch.cuda, "is_current_stream_capturing", lambda: state.capturing),
            (torch.cuda, "synchronize", lambda *_: None),
            (torch.cuda, "device", lambda *_: none),
            (torch.cuda, "device_of", lambda *_: none),
            (torch._C, "_cuda_getDevice", lambda: 0),
            (torch._C, "_cuda_getCurrentRawStream", lambda *_: _STREAM),
        ]
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(mock.patch.object(owner, name, value, create=True))
            self._instead_of_launches(stack, solution)
            stack.enter_context(_OnGpu(self.launched.append))

            def capture() -> None:
                state.capturing = True

            yield capture

    def _instead_of_launches(self, stack: ExitStack, solution: Solution) -> None:
        def called(library: Any, device: Any, *arguments: Any) -> None:
            if not str(library.name).isidentifier():  # by its name a launch says whose code is compared
                raise ValueError(f"a library is called {library.name!r}; name it by letters, digits and underscores")
            self.launched.append(f"{library.name}({', '.join(map(self._shown, arguments))})")

        prefix = solution_module(solution).__name__
        for name, module in list(sys.modules.items()):
            if name == prefix or name.startswith(f"{prefix}."):
                if hasattr(module, "capture_of"):  # asks the driver for the capture's id
                    stack.enter_context(mock.patch.object(module, "capture_of", lambda stream: 7))
                if library := getattr(module, "CudaLibrary", None):
                    stack.enter_context(mock.patch.object(library, "__call__", called))
        try:  # also for a solution that imports it at a call
            from triton.runtime import jit
            from triton.runtime.driver import driver
        except ImportError:
            return

        def compiled(function: Any, key: Any, signature: Any, device: Any, *how: Any) -> Any:
            constants, options, attrs, _ = how
            return self._compiled(function, signature, constants, options, attrs, function.device_caches[device])

        stack.enter_context(mock.patch.object(driver, "_active", _Driver()))
        stack.enter_context(mock.patch.object(jit.JITFunction, "_do_compile", compiled))

    def _compiled(self, function: Any, signature: Any, constants: Any, options: Any, attrs: Any, caches: Any) -> Any:
        """Replaces Triton's compiled kernel, and notes its launch."""
        digest = self._made(function, signature, constants, options, attrs, caches)

        def run(x: int, y: int, z: int, stream: Any, *arguments: Any) -> None:
            bound = [
                self._shown(value)
                for value, name in zip(arguments[5:], function.arg_names, strict=True)
                if signature[name] != "constexpr"
            ]
            self._note(function.__name__, digest, (x, y, z), bound)

        return SimpleNamespace(
            _init_handles=lambda: None,
            run=run,
            function=None,
            packed_metadata=None,
            launch_metadata=lambda *_: None,
            name=function.__name__,
        )

    def _made(self, function: Any, signature: Any, constants: Any, options: Any, attrs: Any, caches: Any) -> str:
        """A digest of the kernel's intermediate code after inlining, or of its machine code (exact), and of its
        compiler options."""
        from triton._C.libtriton import ir

        _, _, target, backend, _ = caches
        how = compiled_how(options.__dict__)
        if self.exact:
            made = compiled_kernel(function, signature, constants, options, attrs, caches)
            return _hashed(sorted(kernels_of(made.asm["cubin"]).digests.values()), how)
        source, context = function.ASTSource(function, signature, constants, attrs), ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        module = source.make_ir(
            target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
        )
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        return _hashed(_LOCATION.sub("", str(stages["ttir"](module, {}))), how)

    def _note(self, kernel: str, digest: str, grid: tuple[int, int, int], bound: list[str]) -> None:
        self.launched.append(f"{kernel} {digest} {list(grid)} ({', '.join(bound)})")

    def _shown(self, value: Any) -> str:
        if hasattr(value, "base") and hasattr(value, "block_shape"):  # a tensor descriptor
            what = [self._shown(value.base), list(value.shape), list(value.strides), list(value.block_shape)]
            return f"descriptor{what}"
        if isinstance(value, ctypes.Structure):
            return f"{{{', '.join(f'{name}: {self._shown(getattr(value, name))}' for name, *_ in value._fields_)}}}"
        if isinstance(value, ctypes.Array):
            return f"[{', '.join(map(self._shown, value))}]"
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if not isinstance(value, torch.Tensor) and (not isinstance(value, int) or value < 1 << 32):
            return repr(value)
        places = (f"{name}+{address - start}" for start, end, name in self._places if start <= address < end)
        return next(places, "workspace")


class _Driver:
    """The driver of a Hopper GPU that does not exist."""

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: _STREAM)
    get_active_torch_device = staticmethod(lambda: _DEVICE)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def compiled_kernel(function: Any, signature: Any, constants: Any, options: Any, attrs: Any, caches: Any) -> Any:
    """Triton's compiled kernel: .asm["cubin"], .metadata."""
    source = function.ASTSource(function, signature, constants, attrs)
    return function.compile(source, target=caches[2], options=options.__dict__)


def compiled_how(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Triton's options as text. Linked libraries count by their contents, not by their paths."""
    libraries = {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in options["extern_libs"]}
    return sorted((name, repr(value)) for name, value in {**options, "extern_libs": libraries}.items())


def _hashed(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def launches_of(
    definition: Definition,
    solution: Solution,
    workloads: tuple[Workload, ...],
    gpu: str,
    exact: bool = False,
    recorder: LaunchRecorder | None = None,
) -> dict[str, list[str] | str]:
    """uuid -> the launches there, or one line that says why they are unknown."""
    found: dict[str, list[str] | str] = {}
    try:
        function, setup = load_solution(definition, solution), load_setup(solution)
    except BaseException as error:  # noqa: BLE001 - whatever its own code raises
        return {each.uuid: f"does not load: {error}" for each in workloads}
    candidate = Candidate(function, solution.destination_passing_style, definition, solution.in_place, setup)
    recorder = recorder or LaunchRecorder(gpu, exact)
    for workload in workloads:
        try:
            found[workload.uuid] = recorder.of_workload(definition, solution, candidate, workload)
        except Exception as error:  # noqa: BLE001 - whatever its own code raises
            found[workload.uuid] = f"{type(error).__name__}: {error}"[:300]
    return found


def launches_here(
    root: Path, definition: str, solution: str, found_in: str, lines: list[dict[str, Any]], gpu: str, exact: bool
) -> LaunchesSeen:
    """launches_of() in this process, which is a worker. found_in: the set that has the solution. lines: the workloads,
    as in their file, or as in a row if they are fresh."""
    known = Catalog.open(root).definition(definition)
    wanted = tuple(workload_of(f"workload {place}", each, known) for place, each in enumerate(lines))
    chosen = Catalog.open(Path(found_in)).solution(solution)
    return LaunchesSeen(launches_of(known, chosen, wanted, gpu, exact))
