"""Rows from columns are the rows of the lines, as they are now; answers from them are the same to the digit."""

import json
import re
import shutil

import msgspec
import pytest

from kernelderby.api.trace_set import open_set
from kernelderby.catalog import Catalog
from kernelderby.catalog.columns import parts
from kernelderby.page.build import build_page
from kernelderby.page.html import page_html

pytest.importorskip("pyarrow")


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Columns are kept of every set, small parts, all in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(parts, "FEWEST_BYTES", 0)
    monkeypatch.setattr(parts, "_LINES_BYTES", 1 << 16)
    monkeypatch.setattr(parts, "_ALONE_BYTES", 1 << 40)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    return tmp_path / "cache"


def plainly(monkeypatch, root):
    with monkeypatch.context() as context:
        context.setattr(parts, "FEWEST_BYTES", 1 << 60)
        catalog = Catalog.open(root)
        return catalog.traces(), catalog.warnings


def written(row):
    return json.dumps(row.to_trace(), sort_keys=True)


def last_of_each(rows):
    """The rows that may count."""
    key = {}
    for row in rows:
        kinds = [(kind, time.samples_us.lengths) for kind, time in row.times.items()]
        key[row.place.path, row.solution, row.gpu, row.protocol, row.solution_hash, str(row.workload), str(kinds)] = row
    return {row.place.line for row in key.values()}


@pytest.fixture
def real_rows(checkout, tmp_path):
    """Two operators of the checkout."""
    root = tmp_path / "some"
    for name in ("norm/rms_norm", "moe/moe_sum_reduce"):
        for pattern in (f"definitions/{name}.*", f"workloads/{name}.*", f"solutions/*/{name}/*.json"):
            for path in (*checkout.glob(pattern), checkout / f"traces/h200/{name}.jsonl"):
                target = root / path.relative_to(checkout)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    return root


def test_the_same_rows_and_answers(kept, real_rows, monkeypatch):
    lines, warnings = plainly(monkeypatch, real_rows)
    catalog = Catalog.open(real_rows)
    columns = catalog.traces()
    assert catalog.warnings == warnings and len(list(kept.rglob("*.parquet"))) > 4
    assert [row.place for row in columns] == [row.place for row in lines]
    for path in {row.place.path for row in lines}:
        of_file = [(one, two) for one, two in zip(lines, columns, strict=True) if one.place.path == path]
        live = last_of_each([one for one, _ in of_file])
        for one, two in of_file:
            if one.place.line in live:
                assert written(one) == written(two)
            else:
                same = ("solution", "gpu", "protocol", "status", "timestamp", "latency_us", "solution_hash", "workload")
                assert all(getattr(one, name) == getattr(two, name) for name in same)
    first = [open_set(real_rows).rank().to_json(), open_set(real_rows).operators().to_json()]
    again = [open_set(real_rows).rank().to_json(), open_set(real_rows).operators().to_json()]
    with monkeypatch.context() as context:
        context.setattr(parts, "FEWEST_BYTES", 1 << 60)
        plain = [open_set(real_rows).rank().to_json(), open_set(real_rows).operators().to_json()]
    assert first == again == plain


def test_the_page_of_columns_is_that_of_the_lines_without_samples(kept, real_rows, monkeypatch):
    """Also with rows that others replace: each stands there twice, at first as of another session."""
    path = real_rows / "traces/h200/norm/rms_norm.jsonl"
    lines = path.read_text().splitlines()
    former = [json.loads(line) for line in lines]
    for row in former:
        row["measurement"]["session"] = "a former one"
        row["evaluation"]["timestamp"] = "2026-01-01T10:00:00Z"
    path.write_text("".join(f"{line}\n" for line in [*map(json.dumps, former), *lines]))
    page = build_page(real_rows)
    with monkeypatch.context() as context:
        context.setattr(parts, "FEWEST_BYTES", 1 << 60)
        plain = build_page(real_rows)
    assert page.samples == () and len(plain.samples) == len(plain.model.races) > 1
    assert page.left_out == plain.left_out
    assert not page.model.has_samples and plain.model.has_samples
    for name in plain.model.__struct_fields__:
        if name not in ("has_samples", "races"):
            assert getattr(page.model, name) == getattr(plain.model, name), name
    assert _uncounted(page.model.races) == _uncounted(plain.model.races)
    assert len(page_html(page)) < len(page_html(plain))


def _uncounted(races):
    """Without how many rows of another protocol are not compared: replaced ones are not among them."""
    return re.sub(r"[(]\d+ rows[)]", "(rows)", msgspec.json.encode(races).decode())


def test_lines_that_come_or_change_are_seen(kept, real_rows, monkeypatch):
    path = real_rows / "traces/h200/norm/rms_norm.jsonl"
    Catalog.open(real_rows).traces()
    before = {each.name: each.stat().st_mtime_ns for each in kept.rglob("*.parquet")}
    row = json.loads(path.read_text().splitlines()[-1])
    row["measurement"]["session"] = "another"
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n" + "{broken\n" + json.dumps(row)[:40])
    catalog = Catalog.open(real_rows)
    rows = catalog.traces("rms_norm")
    lines = plainly(monkeypatch, real_rows)[0]
    assert len(rows) == sum(each.definition == "rms_norm" for each in lines) < len(lines)
    assert rows[-1].session == "another" and "1 other line" in catalog.warnings[0]
    kept_parts = {each.name for each in kept.rglob("*.parquet")} & set(before)
    assert len(kept_parts) >= len(before) - 1  # but for the last one of the file
    text = path.read_text()
    path.write_text(text.replace('"session": "another"', '"session": "changed"'))  # as long as before
    assert Catalog.open(real_rows).traces("rms_norm")[-1].session == "changed"
    assert open_set(real_rows).rank("rms_norm").to_json()


def test_a_broken_cache_is_made_again_or_done_without(kept, real_rows, monkeypatch):
    lines, _ = plainly(monkeypatch, real_rows)
    Catalog.open(real_rows).traces()
    for each in kept.rglob("*.parquet"):
        each.write_bytes(b"nothing")
    assert len(Catalog.open(real_rows).traces()) == len(lines)
    shutil.rmtree(kept)
    kept.write_text("no folder")
    assert [*map(written, Catalog.open(real_rows).traces())] == [*map(written, lines)]


def test_a_process_that_fails_says_nothing_and_the_lines_are_read(kept, real_rows, monkeypatch, capfd):
    before, warned = plainly(monkeypatch, real_rows)
    monkeypatch.setattr(parts, "_ALONE_BYTES", 0)
    monkeypatch.setattr(parts, "_SERVE", "1 / 0")
    catalog = Catalog.open(real_rows)
    assert catalog.traces() == before and catalog.warnings == warned
    assert capfd.readouterr().err == ""


def test_rows_that_contradict_their_session_are_left_out_as_from_lines(kept, real_rows, monkeypatch):
    path = real_rows / "traces/h200/norm/rms_norm.jsonl"
    rows = path.read_text().splitlines()
    odd = json.loads(rows[-1])
    odd["measurement"]["environment"]["driver"] = "1.2.3"
    path.write_text("\n".join([*rows, json.dumps(odd)]) + "\n")
    lines, warnings = plainly(monkeypatch, real_rows)
    for _ in range(2):
        catalog = Catalog.open(real_rows)
        assert len(catalog.traces()) == len(lines) and catalog.warnings == warnings and "driver" in warnings[0]
