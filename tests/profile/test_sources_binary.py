"""XLA's xplane.pb, built field by field, and nsys's Parquet export."""

import gzip
import random
import sqlite3
import tempfile

import pytest
from make_nsys import standard

from kernelderby.errors import DerbyError
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import SpanKind


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(*fields):
    """fields: (number, an integer or bytes or a text)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def metadata(number, name):
    return message((1, number), (2, message((1, number), (2, name))))


def event(number, offset_ps, duration_ps, *stats):
    return message((1, number), (2, offset_ps), (3, duration_ps), *((4, stat) for stat in stats))


def xspace(device="/device:GPU:1 (NVIDIA H200)"):
    details = message((1, 9), (5, "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"))
    stream = message(
        (1, 7),
        (2, "Stream #14(Compute)"),
        (3, 1000),
        (4, event(1, 500_000, 2_000_000)),
        (4, event(2, 3_000_000, 400_000, details)),
    )
    steps = message((1, 8), (2, "XLA Ops"), (3, 1000), (4, event(1, 500_000, 2_000_000)))
    gpu = message(
        (1, 2),
        (2, device),
        (3, stream),
        (3, steps),
        (4, metadata(1, "loop_fusion")),
        (4, metadata(2, "MemcpyH2D")),
        (5, metadata(9, "memcpy_details")),
    )
    host = message((2, "/host:CPU"), (3, message((2, "python"))))
    return message((1, host), (1, gpu), (4, "a host"))


@pytest.mark.parametrize("packed", [False, True])
def test_xplane(tmp_path, packed):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(gzip.compress(xspace()) if packed else xspace())
    profile = open_profile(path)
    assert profile.form == "XLA trace, xplane.pb"
    assert [
        (each.kind, each.name, each.start_ns, each.end_ns, each.device, each.stream, each.bytes)
        for each in profile.spans()
    ] == [
        (SpanKind.KERNEL, "loop_fusion", 1500, 3500, 1, 14, 0),
        (SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]", 4000, 4400, 1, 14, 4096),
    ]


def test_an_xplane_of_a_tpu_has_no_gpu_work(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(xspace("/device:TPU:0"))
    with pytest.raises(DerbyError, match=r"no GPU work in it \(it has /host:CPU, /device:TPU:0\)"):
        open_profile(path)


@pytest.mark.parametrize("number", range(110))
def test_an_xplane_that_is_damaged_is_one_line_or_a_profile(tmp_path, number):
    generator = random.Random(number)
    data = bytearray(xspace())
    for _ in range(generator.randrange(1, 4)):
        data[generator.randrange(len(data))] = generator.randrange(256)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(bytes(data[: generator.randrange(1, len(data))] if generator.random() < 0.3 else data))
    try:
        assert all(row.total_ns >= 0 and row.instances for row in open_profile(path).sums())
    except DerbyError as error:
        assert "\n" not in str(error) and str(path) in str(error)


def as_parquet(database, folder):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    with sqlite3.connect(database) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            columns = [column[0] for column in cursor.description]
            values = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(columns)
            table = pyarrow.table({column: list(cells) for column, cells in zip(columns, values, strict=True)})
            parquet.write_table(table, folder / f"{name}.parquet")
    return folder


def test_a_parquet_export_says_what_the_database_says(tmp_path):
    database = standard(tmp_path / "a.sqlite", "2025.5")
    folder = as_parquet(database, tmp_path / "a_pqtdir")
    theirs = open_profile(database)
    for path in (folder, folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"):
        ours = open_profile(path)
        assert ours.form == theirs.form.replace("SQLite", "Parquet") and ours.path == folder
        assert list(ours.spans()) == list(theirs.spans()) and ours.sums() == theirs.sums()
        assert ours.api_sums() == theirs.api_sums() and ours.range_instances() == theirs.range_instances()
    copied = ours.database
    assert copied.exists()
    del ours
    assert not copied.exists()


def test_the_database_of_a_killed_reader_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = as_parquet(standard(tmp_path / "a.sqlite", "2024"), tmp_path / "a_pqtdir")
    lives = open_profile(folder)
    (ours,) = tmp_path.glob(".derby-parquet*")
    killed = tmp_path / ".derby-parquet.sqlite.0123abcd.unfinished"
    killed.write_bytes(b"of a process that was killed")
    second = open_profile(folder)
    assert not killed.exists() and ours.exists() and not ours.stat().st_mode & 0o077
    assert [each.sums()[0].name for each in (lives, second)] == [lives.sums()[0].name] * 2
    del lives, second
    assert not [*tmp_path.glob(".derby-parquet*")]


def test_a_parquet_file_that_is_damaged_or_alone(tmp_path):
    folder = as_parquet(standard(tmp_path / "a.sqlite", "2024"), tmp_path / "a_pqtdir")
    kernels = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    kernels.write_bytes(kernels.read_bytes()[:200])
    with pytest.raises(DerbyError, match="damaged Parquet file"):
        open_profile(folder)
    alone = tmp_path / "alone.parquet"
    alone.write_bytes(b"PAR1\0")
    with pytest.raises(DerbyError, match="give the folder of `nsys export --type parquetdir`"):
        open_profile(alone)
