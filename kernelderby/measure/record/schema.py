"""The tables of an nsys SQLite export that we write: columns and enumerations of schema 3.20.3 (nsys 2025.3).

From NVIDIA's SQLite export schema reference and the notes on schema changes that nsys carries. Tables that nsys fills
only for other events (OS runtime, sampling, network ...) are absent here, as they are in its own exports.
"""

from __future__ import annotations

SCHEMA_VERSION = (3, 20, 3)

EVENT_RUNTIME, EVENT_DRIVER = 0, 1
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75

_WORK = """
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"""

# Table -> its columns, in SQL.
TABLES = {
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "ANALYSIS_DETAILS": """
        globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL""",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": """
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, l2CacheSize INTEGER, totalMemory INTEGER,
        smCount INTEGER, uuid TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER""",
    "DIAGNOSTIC_EVENT": """
        timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, severity INTEGER NOT NULL,
        text TEXT NOT NULL, globalPid INTEGER""",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"""{_WORK},
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
        cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
        gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
        staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
        localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
        sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"""{_WORK},
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER,
        srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,
        graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"""{_WORK},
        value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
        correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER""",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"""{_WORK},
        deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER""",
    "NVTX_EVENTS": """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
        color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
        uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
        floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT""",
}

# id -> (name, label). nsys's number of a memory kind is CUPTI's minus one; that of a launch type is CUPTI's plus one.
_COPIES = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
)  # fmt: skip
_COPY_NAMES = ("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP")
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_WAITS = ("Unknown", "Event sync", "Stream wait event sync", "Stream sync", "Context sync")
_WAIT_NAMES = ("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE", "CONTEXT_SYNCHRONIZE")
_LAUNCHES = ("Unknown", "Regular", "Cooperative Single-Device", "Cooperative Multi-Device")

UNKNOWN_MEMORY = len(_MEMORIES) - 1


def _labels(prefix: str, labels: tuple[str, ...], names: tuple[str, ...] = ()) -> dict[int, tuple[str, str]]:
    names = names or tuple(label.upper().replace(" ", "_").replace("-", "_") for label in labels)
    return {number: (prefix + name, label) for number, (name, label) in enumerate(zip(names, labels, strict=True))}


ENUMS: dict[str, dict[int, tuple[str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": _labels("CUDA_MEMCPY_KIND_", _COPIES, _COPY_NAMES),
    "ENUM_CUDA_MEM_KIND": _labels("CUDA_MEMOPR_MEMORY_KIND_", _MEMORIES),
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": _labels("CUDA_KERNEL_LAUNCH_TYPE_", _LAUNCHES),
    "ENUM_CUPTI_SYNC_TYPE": _labels("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_", _WAITS, _WAIT_NAMES),
    "ENUM_NSYS_EVENT_CLASS": {
        EVENT_RUNTIME: ("TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        EVENT_DRIVER: ("TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
    },
    "ENUM_NSYS_EVENT_TYPE": {
        NVTX_MARK: ("NvtxMark", "NVTX mark"),
        NVTX_PUSH_POP: ("NvtxPushPopRange", "NVTX push/pop range"),
        NVTX_START_END: ("NvtxStartEndRange", "NVTX start/end range"),
        NVTX_DOMAIN: ("NvtxDomainCreate", "NVTX domain create"),
    },
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": {
        1: ("DIAGNOSTIC_SEVERITY_INFO", "Info"),
        2: ("DIAGNOSTIC_SEVERITY_WARNING", "Warning"),
        3: ("DIAGNOSTIC_SEVERITY_ERROR", "Error"),
    },
}
