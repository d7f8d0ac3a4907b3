"""The environment of a measurement: GPU, clocks, driver, library versions, commit, host."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelderby.catalog.libraries import library_versions
from kernelderby.measure.wire.replies import GpuSeen, MachineSeen

_DEVICES = ("nvidia*", "nvhost*", "nvmap", "dxg")  # of drivers, under /dev
_THROTTLE_REASONS = {  # NVML's clock event reasons that make kernels slower
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x2: "application clocks",
    0x10: "sync boost",
}


def describe(device_type: str) -> MachineSeen:
    """The machine as this process sees it, through torch. Called in a worker. ImportError if torch does not load."""
    import torch

    python, libs, cuda = platform.python_version(), library_versions(), torch.version.cuda
    if cuda:
        libs["cuda"] = cuda
    if device_type != "cuda":
        return MachineSeen(python, libs, gpu_missing="the CPU was asked for")
    if not torch.cuda.is_available():
        build = f"torch {torch.__version__} is built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
        if cuda and _has_nvidia_gpu():
            why = f"CUDA cannot use this machine's GPU ({_why_cuda_fails(torch)})"
            return MachineSeen(python, libs, gpu_missing=why, gpu_fails=True)
        return MachineSeen(python, libs, gpu_missing=f"no CUDA GPU can be used ({build})")
    return MachineSeen(python, libs, gpu_seen())


def without_gpu() -> MachineSeen | None:
    """A machine that cannot have a GPU, by the files of torch and the driver's devices; importing torch for this would
    take two seconds. None if a process must look."""
    spec = importlib.util.find_spec("torch")
    place = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if place is None or not place.is_file():
        return None
    built = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*= *(?:'([^']*)'|None)", place.read_text(), re.MULTILINE))
    if "cuda" not in built or built.get("hip"):
        return None
    if built["cuda"] and any(found for name in _DEVICES for found in Path("/dev").glob(name)):
        return None
    build = f"built for CUDA {built['cuda']}" if built["cuda"] else "built without CUDA"
    libs = library_versions() | ({"cuda": built["cuda"]} if built["cuda"] else {})
    missing = f"no CUDA GPU can be used (torch {built.get('__version__', '')} is {build})"
    return MachineSeen(platform.python_version(), libs, gpu_missing=missing)


def gpu_seen() -> GpuSeen:
    """The first GPU, as torch sees it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return GpuSeen(
        properties.name,
        f"{properties.major}.{properties.minor}",
        f"GPU-{getattr(properties, 'uuid', '')}",
        properties.total_memory,
        properties.L2_cache_size,
        properties.multi_processor_count,
    )


def _has_nvidia_gpu() -> bool:
    """Whether the driver shows a GPU, apart from environment variables that hide it."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")
    return not hidden and any(Path("/dev").glob("nvidia[0-9]*"))


def _why_cuda_fails(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # any error of the driver or of torch's build is the reason  # noqa: BLE001
        return " ".join(str(error).split())[:300]
    return "torch counts none"


class GpuSensors:
    """Driver version and momentary clocks through NVML; empty readings without nvidia-ml-py."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None  # pynvml, which has no types
        self._handle: Any = None  # of the GPU; None without NVML
        self._events: Any = None  # None unless it listens for errors
        self.problem = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, self._find(pynvml, uuid)
        except Exception as error:  # no module, no driver, no permission: only the readings are lost  # noqa: BLE001
            self.problem = f"{type(error).__name__}: {error}"

    @staticmethod
    def _find(nvml: Any, uuid: str | None) -> Any:
        if uuid:
            try:
                return nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError:
                pass  # in a container the names can differ; then take the first GPU
        return nvml.nvmlDeviceGetHandleByIndex(0)

    def _asked(self, ask: Callable[[Any, Any], Any]) -> Any:
        """NVML's answer, for its module and the GPU's handle; None if it fails."""
        if self._handle is None:
            return None
        try:
            return ask(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None

    def driver(self) -> str | None:
        text: str | bytes | None = self._asked(lambda nvml, _: nvml.nvmlSystemGetDriverVersion())
        return text.decode() if isinstance(text, bytes) else text

    def processes(self) -> list[int] | None:
        """The process ids that compute on the GPU, in the driver's numbers, which may differ from those inside a
        container. None if unknown."""
        found = self._asked(lambda nvml, handle: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return None if found is None else sorted({each.pid for each in found})

    def uncorrected_errors(self) -> int | None:
        """Uncorrectable ECC errors of memory since the driver was loaded; None if unknown."""
        found = self._asked(
            lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )
        return None if found is None else int(found)

    def lost(self) -> str:
        """Why the driver has lost the GPU; empty if it has not."""
        if self._handle is None:
            return ""
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetMemoryInfo(self._handle)
            nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError as error:
            gone = ("GPU_IS_LOST", "DRIVER_NOT_LOADED", "RESET_REQUIRED", "LIB_RM_VERSION_MISMATCH", "UNINITIALIZED")
            if error.value in [getattr(nvml, f"NVML_ERROR_{name}", None) for name in gone]:
                return f"the driver says: {error}"
        return ""

    def critical_errors(self) -> list[int]:
        """The Xids that the driver has reported since watch_errors()."""
        found: list[int] = []
        while self._events is not None:
            try:
                found.append(int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except self._nvml.NVMLError:  # none is left
                break
        return found

    def watch_errors(self) -> None:
        """From now on the driver collects its critical errors for critical_errors()."""
        if self._handle is None:
            return
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except (nvml.NVMLError, AttributeError):  # not every machine allows users to listen
            self._events = None

    def read(self) -> dict[str, Any]:
        """sm_mhz, memory_mhz, temperature_celsius, power_watts, throttled_by, as far as NVML gives them."""
        readings: dict[str, Callable[[Any, Any], Any]] = {
            "sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "power_watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "throttled_by": _throttled_by,
        }
        found = {name: self._asked(reading) for name, reading in readings.items()}
        return {name: value for name, value in found.items() if value is not None}  # not every GPU has every sensor


def _throttled_by(nvml: Any, handle: Any) -> list[str]:
    former = "nvmlDeviceGetCurrentClocksThrottleReasons"  # its name in older drivers
    mask = (getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(nvml, former))(handle)
    return [name for bit, name in sorted(_THROTTLE_REASONS.items()) if mask & bit]


def host_cpu() -> str:
    """The CPU's model name; launch overhead depends on it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
