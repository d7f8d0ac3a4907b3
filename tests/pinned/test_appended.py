"""store/appended.py to the byte: last lines, locks and their ranges, modes, messages."""

import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelderby.errors import DerbyError
from kernelderby.store import appended
from kernelderby.store.appended import CLAIMS

OF_CLAIMS = 1 << 41  # bytes from CLAIMS on


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def replace_functions(monkeypatch, module, **functions):
    """In what appended.py sees of a module: a thread that a former test has left may call the module's own."""
    monkeypatch.setattr(appended, module.__name__, SimpleNamespace(**{**vars(module), **functions}))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("length", [1, 2, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 17, 200_000])
@pytest.mark.parametrize("before", [b"", b"\n", b'{"row": 1}\n', b"x" * 70_000 + b"\n"])
def test_the_last_line_whatever_its_length(path, length, before):
    path.write_bytes(before + b"y" * length)
    with path.open("rb") as file:
        assert appended._last_line(file.fileno()) == (b"y" * length, len(before))


def test_of_a_large_file_the_end_alone_is_read(path, monkeypatch):
    path.write_bytes(b'{"row": 1}\n' * 50_000)
    real, read = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *words: read.append(len(found := real(*words))) or found)
    appended.append_line(path, "{}")
    assert read == [1 << 16]


def test_a_file_that_goes_before_it_is_mended_is_not_made(path, monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    with pytest.raises(DerbyError, match="cannot be written"):
        appended.mend_last_line(path)
    assert os.listdir(path.parent) == []


def test_no_last_line(path):
    for content in (b"", b"\n", b"row\n"):
        path.write_bytes(content)
        with path.open("rb") as file:
            assert appended._last_line(file.fileno()) == (b"", len(content))
        assert appended.mend_last_line(path) is None and path.read_bytes() == content
    assert appended.mend_last_line(path.parent / "absent") is None
    assert os.listdir(path.parent) == [path.name]


def test_a_cut_line_is_moved_aside_whole(path):
    row, cut = json.dumps({"row": 1}) + "\n", '{"row": 2, "te'
    path.write_text(row + cut)
    told = appended.mend_last_line(path)
    assert told.startswith(f"{path}: the last line was cut short; it was moved to rows.jsonl.damaged")
    assert path.read_text() == row and path.with_name("rows.jsonl.damaged").read_text() == cut + "\n"
    path.write_text(row + "[" * 100_000)
    assert "was moved" in appended.append_line(path, "{}")
    assert path.read_text() == row + "{}\n"
    assert path.with_name("rows.jsonl.damaged").read_text() == f"{cut}\n{'[' * 100_000}\n"
    path.write_text(row + row[:-1])
    assert appended.append_line(path, "{}") is None and path.read_text() == row + row + "{}\n"


@pytest.mark.parametrize("name", ["pwrite", "ftruncate", "fsync"])
def test_a_cut_line_that_cannot_be_moved_stays(path, monkeypatch, name):
    path.write_text("{}\n{")
    monkeypatch.setattr(os, "write" if name == "pwrite" else name, lambda *_: raised(errno.EIO))
    with pytest.raises(DerbyError, match="its last line is cut short and cannot be mended"):
        appended.append_line(path, "{}")
    with pytest.raises(DerbyError, match="rows.jsonl: cannot be cut"):
        appended.move_aside(path, 3, path.with_name("aside"))
    monkeypatch.undo()
    assert path.read_text().startswith("{}\n")


def raised(number):
    raise OSError(number, os.strerror(number))


def test_what_stops_a_row_other_than_the_disk_goes_through(path, monkeypatch):
    appended.append_line(path, "{}")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        appended.append_line(path, "{}")
    assert path.read_text() == "{}\n"


def test_lines_moved_aside_follow_those_already_there(path, tmp_path):
    path.write_text("one\ntwo\nthree\n")
    aside = tmp_path / "aside"
    aside.write_text("before\n")
    appended.move_aside(path, 4, aside)
    assert path.read_text() == "one\n" and aside.read_text() == "before\ntwo\nthree\n"
    with pytest.raises(DerbyError, match="absent: cannot be written"):
        appended.move_aside(tmp_path / "absent", 0, aside)
    assert not (tmp_path / "absent").exists()


def test_a_new_file_may_be_used_by_whom_the_umask_allows(tmp_path, no_umask):
    for name in ("new/er/rows", "new/er/others"):
        appended.append_line(tmp_path / name, "{}")
        assert mode(tmp_path / name) == 0o666


def test_what_is_no_file_holds_nobody(path):
    os.mkfifo(path)
    for call in (lambda: appended.append_line(path, "{}"), lambda: appended.move_aside(path, 0, path)):
        with pytest.raises(DerbyError, match="it is no regular file"):
            call()


# --------------------------------------------------------------------------------------------------------- replacement


def test_a_file_is_replaced_whole_with_its_mode(path):
    path.write_text("old\n")
    path.chmod(0o640)
    with appended.replaced_under_lock(path) as replace:
        replace(iter([b"one", b"two"]))
    assert path.read_text() == "one\ntwo\n" and mode(path) == 0o640 and os.listdir(path.parent) == [path.name]
    with appended.replaced_under_lock(path):
        pass
    assert path.read_text() == "one\ntwo\n", "nothing was asked"


def test_a_file_that_was_not_there_and_got_no_row_is_not_there(path):
    with appended.replaced_under_lock(path):
        assert path.exists()
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), appended.replaced_under_lock(path) as replace:
        replace(1 / 0 for _ in "x")
    assert not path.exists()
    with appended.replaced_under_lock(path) as replace:
        replace([b"row"])
    assert path.read_text() == "row\n"
    with appended.replaced_under_lock(path) as replace:
        replace([])
    assert path.read_text() == "", "rows were there, which somebody took away"


@pytest.mark.parametrize("step", ["fsync", "replace", "fchmod"])
def test_a_file_that_cannot_be_replaced_is_as_it_was(path, monkeypatch, step):
    path.write_text("old\n")
    monkeypatch.setattr(os, step, lambda *_: raised(errno.ENOSPC))
    with pytest.raises(DerbyError, match="No space left on device.*it is as it was"):
        with appended.replaced_under_lock(path) as replace:
            replace([b"new"])
    assert path.read_text() == "old\n" and os.listdir(path.parent) == [path.name]


# --------------------------------------------------------------------------------------------------------------- locks


def can_lock(path, start):
    with path.open("r+b") as file:
        return appended.lock_bytes(file.fileno(), start, 1)


def test_which_bytes_a_writer_locks(path):
    """Processes of two versions agree on it."""
    assert CLAIMS == 1 << 48
    with appended._locked(path, create=True):
        assert [can_lock(path, start) for start in (0, 1, CLAIMS - 1, CLAIMS)] == [False, False, False, True]
    with appended.replaced_under_lock(path):
        places = (0, CLAIMS, CLAIMS + OF_CLAIMS - 1, CLAIMS + OF_CLAIMS)
        assert [can_lock(path, start) for start in places] == [False, False, False, True]


@pytest.mark.parametrize(("place", "is_held"), [(CLAIMS, True), (CLAIMS + OF_CLAIMS - 1, True), (CLAIMS - 1, None)])
def test_a_file_that_a_run_measures_into_is_not_replaced(path, monkeypatch, place, is_held):
    monkeypatch.setattr(appended, "_LOCK_SECONDS", 0)
    path.write_text("{}\n")
    with path.open("r+b") as file:
        assert appended.lock_bytes(file.fileno(), place, 1) is True
        words = "a run measures into it" if is_held else "another process has held it"
        with pytest.raises(DerbyError, match=words), appended.replaced_under_lock(path):
            pass
    assert path.read_text() == "{}\n"


@pytest.mark.parametrize(("error", "answer"), [(errno.EAGAIN, False), (errno.EACCES, False), (errno.ENOLCK, None)])
def test_what_the_file_system_says_of_a_lock(path, monkeypatch, error, answer):
    replace_functions(monkeypatch, fcntl, fcntl=lambda *_: raised(error))
    with path.open("w") as file:
        if answer is None:
            with pytest.raises(DerbyError, match="the traces cannot be locked .No locks available"):
                appended.lock_bytes(file.fileno(), 0, 1)
        else:
            assert appended.lock_bytes(file.fileno(), 0, 1) is answer


def test_how_long_a_writer_waits_for_another(path, monkeypatch):
    """On a clock that moves only while it sleeps."""
    now, slept = [1000.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += 1

    replace_functions(monkeypatch, time, monotonic=lambda: now[0], sleep=sleep)
    with appended._locked(path, create=True), pytest.raises(DerbyError, match="another process has held it for 60 s"):
        appended.append_line(path, "{}")
    assert len(slept) == 61 and max(slept) < 0.02, "a row takes milliseconds"


def test_who_waited_for_a_file_that_was_replaced_meanwhile_writes_into_the_new_one(path, monkeypatch):
    path.write_text("old\n")
    real, once = appended._wait_for, []

    def late(descriptor, waited, freed):
        if not once:
            once.append(os.replace(make(path.with_name("new"), "new\n"), path))
        real(descriptor, waited, freed)

    monkeypatch.setattr(appended, "_wait_for", late)
    appended.append_line(path, "{}")
    assert path.read_text() == "new\n{}\n"


def make(path, text):
    path.write_text(text)
    return path


def test_the_look_at_the_disk_writes_more_than_a_row(path, monkeypatch):
    write, written = os.write, []
    monkeypatch.setattr(os, "write", lambda each, data: (written.append(len(data)), write(each, data))[1])
    for _ in range(2):
        appended.expect_writable(path.parent / "new/er/rows")
        assert sum(written) == 1 << 20
        written.clear()
    path.touch()
    monkeypatch.setattr(appended, "_LOCK_SECONDS", 0)
    with appended._locked(path, create=False), pytest.raises(DerbyError, match="another process has held it"):
        appended.expect_writable(path)
    real_locked = appended._locked
    monkeypatch.setattr(
        appended, "_locked", lambda path, create: pytest.fail("made") if create else real_locked(path, 0)
    )
    appended.expect_writable(path)


def test_the_lock_of_all_users(tmp_path, monkeypatch, no_umask):
    assert str(appended.LOCK_FOLDER) == "/tmp/kernelderby-locks", "not $TMPDIR's: it is each shell's own"
    folder = tmp_path / "locks"
    monkeypatch.setattr(appended, "LOCK_FOLDER", folder)
    os.umask(0o077)
    with appended.exclusive_lock("gpu", "another run"):
        assert mode(folder / "gpu.lock") == 0o644 and mode(folder) == 0o1777
    folder.rename(tmp_path / "other")
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(DerbyError, match="is no folder"):
        appended.lock_folder()
    tmp_path /= "other"
    descriptor = appended.lock_file(tmp_path / "gpu.lock")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    os.close(descriptor)
    (tmp_path / "gpu.lock").unlink()
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DerbyError, match="cannot be opened as a lock"):
        appended.lock_file(tmp_path / "gpu.lock")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("mode", "own", "mends"), [(0o755, True, 1), (0o1777, True, 0), (0o755, False, 0)])
def test_the_folder_of_locks_is_open_to_all_who_may_mend_it(tmp_path, monkeypatch, mode, own, mends):
    folder, mended = tmp_path / "locks", []
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setattr(appended, "LOCK_FOLDER", folder)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + (not own))
    monkeypatch.setattr(Path, "chmod", lambda self, to: mended.append(to))
    assert appended.lock_folder() == folder
    assert mended == [0o1777] * mends
