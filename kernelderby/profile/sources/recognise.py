"""Recognises the kind of a profile by its first bytes. Its name does not matter."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.report_file import SUFFIXES, open_report
from kernelderby.profile.spans import Profile
from kernelderby.store.bounds import now_reading
from kernelderby.store.files import decoded, opened

_SQLITE = b"SQLite format 3\0"
_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    _PARQUET: "a Parquet file alone; give the folder of `nsys export --type parquetdir`",
    b"\x89HDF": "an HDF5 file; export the report with `nsys export --type sqlite`",
    b"ARROW1": "an Arrow file; export the report with `nsys export --type sqlite`",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; decompress it first",
    b"BZh": "compressed with bzip2; decompress it first",
    b"\xfd7zXZ": "compressed with xz; decompress it first",
    b"NVR\0": "a report of Nsight Compute, without a timeline; for its counters: "
    "`ncu --import REPORT --csv --page raw`, then `derby profile counters`",
}
_COUNTERS = re.compile(r'^"ID",.*"Kernel Name"|^"(?:Process ID|Kernel Name)",.*"Metric Name"', re.MULTILINE)
# Its first field is a plane, which begins with an id or a name.
_XPLANE = re.compile(rb"\x0a.{1,9}?(?:\x08.{1,9}?)?\x12.(?:/host:|/device:|Task Environment)", re.DOTALL)
_HEAD = 4096


def open_profile(path: Path | str, operators: bool = False) -> Profile:
    """Recognises the source by content. operators: with the framework's operators, if a torch.profiler trace has them
    (Profile.issued). DerbyError (one line: file, problem, mend) for a missing file, a truncated or locked database, a
    file without CUDA work, or another tool's report."""
    path = Path(path)
    now_reading(path)
    try:
        if path.is_dir() and _is_parquet_export(path):
            return _open_parquet(path)
        if path.is_dir():
            raise DerbyError(f"{path}: is a folder; name a profile file in it")
        with opened(path) as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise DerbyError(f"{path}: no such file; mend the name") from None
    except OSError as error:
        raise DerbyError(f"{path}: cannot be read ({error.strerror}); name a file that can be") from None
    if not head:
        raise DerbyError(f"{path}: is empty; the program that wrote it has probably failed")
    if head.startswith(_SQLITE):
        return _open_database(path)
    if head.startswith(_PARQUET) and _is_parquet_export(path.parent):
        return _open_parquet(path.parent)
    if head.startswith(_GZIP):
        return _open_text(path, _unpacked_head(path), True, operators)
    return _open_text(path, head, False, operators)


def _is_parquet_export(folder: Path) -> bool:
    """Whether the folder holds the tables of `nsys export --type parquetdir`, one file each."""
    return any(path.name.startswith("CUPTI_ACTIVITY_KIND_") for path in folder.glob("*.parquet"))


def _open_parquet(folder: Path) -> Profile:
    from kernelderby.profile.sources.sqlite.parquet import open_parquet

    return open_parquet(folder)


def _open_database(path: Path) -> Profile:
    """Opens a database of nsys or of AMD's tools, by its tables."""
    from kernelderby.profile.sources.rocpd import is_rocpd, open_rocpd
    from kernelderby.profile.sources.sqlite.export import open_sqlite
    from kernelderby.profile.sources.sqlite.schema import check_whole, connect

    check_whole(path)
    with connect(path) as connection:
        names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master")]
    return open_rocpd(path) if is_rocpd(names) else open_sqlite(path)


def _unpacked_head(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(_HEAD)
    except (OSError, EOFError, zlib.error) as error:
        raise DerbyError(f"{path}: damaged gzip file ({error}); copy or write it again") from None


def _open_text(path: Path, head: bytes, packed: bool, operators: bool) -> Profile:
    reason = next((reason for magic, reason in _OTHERS.items() if head.startswith(magic)), None)
    if reason:
        raise DerbyError(f"{path}: is {reason}")
    if head.startswith(_SQLITE):
        raise DerbyError(f"{path}: is a gzipped SQLite database; run `gunzip` on it first")
    if _XPLANE.match(head):
        from kernelderby.profile.sources.xplane import open_xplane

        return open_xplane(path, packed)
    if path.suffix in SUFFIXES and b"\0" in head:
        return open_report(path)
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16 text has zeros too
        raise DerbyError(f"{path}: {_binary(path)}")
    from kernelderby.profile.sources import rocprof
    from kernelderby.profile.sources.summary import JSON_ROW, open_summary, read_text
    from kernelderby.profile.sources.traces import HEADER, open_traces

    text = decoded(head, "replace").lstrip()
    if _COUNTERS.search(text):
        raise DerbyError(f"{path}: holds counters of Nsight Compute, no timeline; use `derby profile counters`")
    if JSON_ROW.match(text):
        return open_summary(path, packed)
    if text.startswith(("{", "[")):
        from kernelderby.profile.sources.kineto import open_kineto

        return open_kineto(path, packed, operators)
    if HEADER.search(text):
        return open_traces(path, read_text(path, packed))
    if rocprof.HEADER.search(text):
        return rocprof.open_rocprof(path, read_text(path, packed))
    return open_summary(path, packed)


def _binary(path: Path) -> str:
    """nsys's reports have no documented magic number, so the advice covers both cases."""
    if path.suffix == ".qdstrm":
        return (
            ".qdstrm is the raw stream of `nsys profile`; import it with a full nsys installation "
            "(`QdstrmImporter -i FILE`), then run `nsys export --type sqlite` on the .nsys-rep"
        )
    return (
        "a binary file that derby does not read; a report of nsys (.nsys-rep, .qdrep) must be exported first: "
        "`nsys export --type sqlite REPORT.nsys-rep`"
    )
