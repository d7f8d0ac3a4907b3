"""Makes nsys SQLite exports of each schema generation, row by row, for tests whose answers are worked out by hand.

Column sets follow NVIDIA's "SQLite Export Schema Reference" and exports seen of schema 2.9 (nsys 2022.2), 3.16
(2024.6), 3.25 (2025.5); "2026" has the suffixed tables that some exports have. As a script it writes the standard one:
`python tests/profile/make_nsys.py OUT.sqlite [GENERATION]`.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

GENERATIONS = ("2022.2", "2024", "2025.5", "2026")
SCHEMA_VERSION = {"2022.2": "2.9.1", "2024": "3.16.1", "2025.5": "3.25.0", "2026": "3.27.1"}

_LAUNCH = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
_COMMON = "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
_GRID = (
    "registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, "
    "blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, "
    "localMemoryTotal INTEGER, gridId INTEGER, graphNodeId INTEGER"
)
_COPIES = (
    (0, "UNKNOWN", "Unknown"),
    (1, "HTOD", "Host-to-Device"),
    (2, "DTOH", "Device-to-Host"),
    (8, "DTOD", "Device-to-Device"),
    (10, "PTOP", "Peer-to-Peer"),
)


def tables_of(generation: str) -> dict[str, str]:
    """Table -> columns. Tables are made when the first row comes, as nsys does."""
    old = generation == "2022.2"
    head = _LAUNCH + ("" if old else "greenContextId INTEGER, ") + _COMMON
    graph = ", graphId INTEGER, clusterX INTEGER, clusterY INTEGER, clusterZ INTEGER"
    late = graph if generation in ("2025.5", "2026") else ""
    suffix = "_V3" if generation == "2026" else ""
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL" + suffix: head
        + "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
        + ("" if old else "mangledName INTEGER, ")
        + "launchType INTEGER, cacheConfig INTEGER, "
        + _GRID
        + late,
        "CUPTI_ACTIVITY_KIND_MEMCPY" + suffix: head + "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
        "srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER",
        "CUPTI_ACTIVITY_KIND_MEMSET" + suffix: head + "value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER",
        "CUPTI_ACTIVITY_KIND_RUNTIME" + suffix: "start INTEGER NOT NULL, end INTEGER NOT NULL, "
        "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, "
        "returnValue INTEGER NOT NULL, callchainId INTEGER",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": head + "graphId INTEGER, graphExecId INTEGER",
        "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER" + (" NOT NULL" if old else "") + ", "
        "eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
        "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER",
        "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
        "TARGET_INFO_GPU": "id INTEGER NOT NULL, name TEXT, smCount INTEGER" + ("" if old else ", cuDevice INTEGER"),
        "DIAGNOSTIC_EVENT": "timestamp INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL",
        ("EXPORT_META_DATA" if old else "META_DATA_EXPORT"): "name TEXT NOT NULL, value TEXT",
        **({} if old else {"ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT"}),
    }


def global_id(process: int, thread: int = 0) -> int:
    """nsys's serialized GlobalId of a process (thread 0) or thread; the top byte stands for the machine."""
    return 1 << 48 | process << 24 | thread


class Export:
    """An export under construction; `with Export(path, generation) as export:` commits at the end."""

    def __init__(self, path: Path, generation: str = "2024", gpu: str | None = "NVIDIA H200"):
        self.generation, self.old = generation, generation == "2022.2"
        self.columns = tables_of(generation)
        self.suffix = "_V3" if generation == "2026" else ""
        self.made: set[str] = set()
        self.ids: dict[str, int] = {}
        self.connection = sqlite3.connect(path)
        meta = "EXPORT_META_DATA" if self.old else "META_DATA_EXPORT"
        self.row(meta, name="EXPORT_SCHEMA_VERSION", value=SCHEMA_VERSION[generation])
        if gpu:
            self.row("TARGET_INFO_GPU", id=0, name=gpu, smCount=132, **({} if self.old else {"cuDevice": 0}))

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.commit()
        self.connection.close()

    def table(self, name: str) -> None:
        """Makes it when it is not there yet; also for tests of tables without rows."""
        if name not in self.made:
            self.connection.execute(f"CREATE TABLE {name} ({self.columns[name]})")
            self.made.add(name)

    def row(self, table: str, **values: object) -> None:
        self.table(table)
        columns = [part.strip().split()[0] for part in self.columns[table].split(",")]
        needed = {part.strip().split()[0] for part in self.columns[table].split(",") if "NOT NULL" in part}
        values = {**dict.fromkeys(needed - values.keys(), 0), **values}
        names = [name for name in columns if name in values]
        quoted = ", ".join(f'"{name}"' for name in names)
        self.connection.execute(
            f"INSERT INTO {table} ({quoted}) VALUES ({', '.join('?' * len(names))})", [values[name] for name in names]
        )

    def string(self, text: str) -> int:
        if text not in self.ids:
            self.ids[text] = len(self.ids) + 1
            self.row("StringIds", id=self.ids[text], value=text)
        return self.ids[text]

    def call(
        self,
        name: str,
        start: int,
        end: int,
        correlation: int | None,
        process: int = 100,
        thread: int = 101,
        event_class: int = 0,
    ) -> None:
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME" + self.suffix,
            start=start,
            end=end,
            eventClass=event_class,
            globalTid=global_id(process, thread),
            correlationId=correlation,
            nameId=self.string(name),
        )

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        correlation: int | None = None,
        process: int = 100,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        short = name.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
        self.row(
            "CUPTI_ACTIVITY_KIND_KERNEL" + self.suffix,
            start=start,
            end=end,
            correlationId=correlation,
            globalPid=global_id(process),
            deviceId=device,
            streamId=stream,
            demangledName=self.string(name),
            shortName=self.string(short),
        )

    def memcpy(
        self,
        kind: int,
        size: int,
        start: int,
        end: int,
        correlation: int | None = None,
        process: int = 100,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        if not self.old and "ENUM_CUDA_MEMCPY_OPER" not in self.made:
            for number, name, label in _COPIES:
                self.row("ENUM_CUDA_MEMCPY_OPER", id=number, name=f"CUDA_MEMCPY_KIND_{name}", label=label)
        self.row(
            "CUPTI_ACTIVITY_KIND_MEMCPY" + self.suffix,
            start=start,
            end=end,
            correlationId=correlation,
            globalPid=global_id(process),
            deviceId=device,
            streamId=stream,
            bytes=size,
            copyKind=kind,
        )

    def memset(
        self,
        size: int,
        start: int,
        end: int,
        correlation: int | None = None,
        process: int = 100,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        self.row(
            "CUPTI_ACTIVITY_KIND_MEMSET" + self.suffix,
            start=start,
            end=end,
            correlationId=correlation,
            globalPid=global_id(process),
            deviceId=device,
            streamId=stream,
            bytes=size,
        )

    def nvtx(
        self,
        text: str | None,
        start: int,
        end: int | None,
        process: int = 100,
        thread: int = 101,
        kind: int = 59,
        registered: bool = False,
    ) -> None:
        """end None: a range that the capture ended in. registered: the text is an id into StringIds."""
        stop = 0 if end is None and self.old else end
        self.row(
            "NVTX_EVENTS",
            start=start,
            end=stop,
            eventType=kind,
            globalTid=global_id(process, thread),
            domainId=0,
            **({"textId": self.string(text)} if registered else {"text": text}),
        )

    def graph(self, start: int, end: int, correlation: int | None = None, process: int = 100) -> None:
        self.row(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=start,
            end=end,
            correlationId=correlation,
            globalPid=global_id(process),
            deviceId=0,
            streamId=7,
            graphId=1,
        )

    def diagnostic(self, severity: int, text: str) -> None:
        self.row("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)


GEMM = "void gemm<(int)128, float>(T2 *, T2 const *)"
SOFTMAX = "softmax_kernel"


def standard(path: Path, generation: str = "2024") -> Path:
    """Two processes with the same correlation ids, nested and open ranges, a kernel without a launch, a copy each way
    and a memset; rows are not in order. Old generations have two API rows a launch.

    What it holds (ns), in order of start:
        100-150   memcpy H2D 4096 B   p100  ranges: step 1
        200-300   GEMM                p100  ranges: step 1 > attention
        250-450   GEMM                p200  ranges: other
        300-360   softmax             p100  ranges: step 1 > attention > softmax
        400-420   memset 512 B        p100  ranges: step 1
        500-620   GEMM                p100  no launch row, no ranges
        700-740   softmax             p100  launched by thread 102, which has no ranges
        800-880   GEMM, stream 9      p100  ranges: open range
        900-910   memcpy D2H 64 B     p200  no ranges
    """
    with Export(path, generation) as export:

        def launch(name: str, start: int, end: int, *rest: int) -> None:
            export.call(name + "_v7000", start, end, *rest)
            if export.old:
                export.call(name, start - 1, end + 1, *rest, 67)

        export.kernel(GEMM, 500, 620, 99)
        export.kernel(GEMM, 200, 300, 2)
        export.kernel(SOFTMAX, 700, 740, 5)
        export.kernel(GEMM, 250, 450, 2, process=200, device=1)
        export.kernel(SOFTMAX, 300, 360, 3)
        export.kernel(GEMM, 800, 880, 6, stream=9)
        export.memcpy(1, 4096, 100, 150, 1)
        export.memcpy(2, 64, 900, 910, 3, process=200, device=1)
        export.memset(512, 400, 420, 4)
        launch("cudaMemcpyAsync", 20, 30, 1, 100, 101)
        launch("cudaLaunchKernel", 42, 48, 2, 100, 101)
        launch("cudaLaunchKernel", 52, 58, 3, 100, 101)
        launch("cudaMemsetAsync", 72, 78, 4, 100, 101)
        launch("cudaLaunchKernel", 52, 59, 5, 100, 102)
        launch("cudaLaunchKernel", 202, 208, 6, 100, 101)
        launch("cudaLaunchKernel", 12, 18, 2, 200, 201)
        launch("cudaMemcpyAsync", 92, 98, 3, 200, 201)
        export.call("cudaDeviceSynchronize_v3020", 100, 600, 7)
        export.nvtx("softmax", 50, 60, registered=True)
        export.nvtx("step 1", 10, 80)
        export.nvtx("attention", 40, 70, registered=True)
        export.nvtx("other", 10, 90, process=200, thread=201)
        export.nvtx("a mark", 55, None, kind=34)
        export.nvtx("open range", 200, None)
    return path


if __name__ == "__main__":
    standard(Path(sys.argv[1]), *sys.argv[2:3])
