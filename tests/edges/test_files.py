"""Files whole or not there, rows whole or not there, whatever fails at whatever step; paths that stay inside."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from kernelderby.errors import DerbyError
from kernelderby.store import appended, files

OLD, NEW = b"old content\n" * 50, b"new content, which is longer\n" * 80
ROW = json.dumps({"row": 1, "text": "x" * 400})
STEPS = ["open", "flock", "fchmod", "write", "fsync", "replace"]


def left_beside(path):
    return sorted(each.name for each in path.parent.iterdir() if each.name != path.name)


def failing(monkeypatch, name, error, after=0):
    """The call of that name fails with an error, once it has worked `after` times."""
    module = files.fcntl if name == "flock" else os
    real, calls = getattr(module, name), []

    def broken(*arguments, **more):
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **more)

    monkeypatch.setattr(module, name, broken)
    return calls


# --------------------------------------------------------------------------------------------------------- whole files


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("step", [step for step in STEPS if step != "flock"])
def test_a_file_that_cannot_be_replaced_is_as_it_was(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file.json"
    path.write_bytes(OLD)
    with monkeypatch.context() as patch:
        assert failing(patch, step, error) == []
        with pytest.raises(DerbyError, match="file.json: cannot be written .*; it is as it was"):
            files.write_whole(path, NEW)
    assert path.read_bytes() == OLD and left_beside(path) == []
    files.write_whole(path, NEW)
    assert path.read_bytes() == NEW


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    failing(monkeypatch, "flock", errno.ENOTSUP)
    files.write_whole(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW and left_beside(tmp_path / "file") == []


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:7]))
    files.write_whole(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW
    appended.append_line(tmp_path / "rows", ROW)
    assert (tmp_path / "rows").read_text() == ROW + "\n"


def test_a_disk_that_fills_up_in_the_middle(tmp_path, monkeypatch):
    path, real, calls = tmp_path / "file", os.write, []
    path.write_bytes(OLD)

    def filling(descriptor, data):
        calls.append(data)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, bytes(data)[:10])

    monkeypatch.setattr(os, "write", filling)
    with pytest.raises(DerbyError, match="No space left"):
        files.write_whole(path, NEW)
    assert path.read_bytes() == OLD and left_beside(path) == []


def test_mode_and_symlink_stay(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes(OLD)
    path.chmod(0o640)
    link = tmp_path / "link.md"
    link.symlink_to("README.md")
    files.write_whole(link, NEW)
    assert link.is_symlink() and path.read_bytes() == NEW and path.stat().st_mode & 0o777 == 0o640
    before = os.umask(0o027)
    try:
        files.write_whole(tmp_path / "made.json", NEW)
    finally:
        os.umask(before)
    assert (tmp_path / "made.json").stat().st_mode & 0o777 == 0o640


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from kernelderby.store import appended, files

    step, path, what = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    module = files.fcntl if step in ("flock", "fcntl") else os
    real = getattr(module, step)

    def dying(*arguments, **more):
        if step == "write":  # half of it
            real(arguments[0], bytes(arguments[1])[:len(arguments[1]) // 2])
        elif sys.argv[4] == "after":
            real(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, step, dying)
    if what == "row":
        appended.append_line(path, "second " * 100)
    else:
        files.write_whole(path, b"new content, which is longer\\n" * 80)
"""


def killed_at(step, path, what, when="before"):
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), step, str(path), what, when],
        env={**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])},
    )
    assert run.returncode == -signal.SIGKILL


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_leaves_the_old_file_or_the_new_one_and_the_next_run_cleans_up(tmp_path, step, when):
    path = tmp_path / "file.safetensors"
    path.write_bytes(OLD)
    killed_at(step, path, "file", when)
    assert path.read_bytes() in (OLD, NEW)
    files.write_whole(path, b"next")
    assert path.read_bytes() == b"next" and left_beside(path) == []


def test_what_a_living_process_writes_is_not_cleaned_away(tmp_path):
    path = tmp_path / "file"
    with files.temporary(path) as (unfinished, _):
        files.write_whole(path, NEW)
        assert unfinished.exists()
    assert left_beside(path) == []


def test_a_folder_is_whole_or_not_there(tmp_path, monkeypatch):
    """As the cache's of a solution's sources: after a failure, after a kill, beside another one."""
    folder, content = tmp_path / "cache" / "name-hash", {"main.py": "run", "deep/kernel.cu": "code"}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            files.write_folder(folder, content)
    assert not folder.exists()
    assert files.write_folder(folder, content) == folder  # and the rest of the first is gone
    assert sorted(path.name for path in folder.parent.iterdir()) == ["name-hash"]
    assert (folder / "deep/kernel.cu").read_text() == "code"
    other = files.write_folder(folder, {"main.py": "other"})
    assert other != folder and (folder / "main.py").read_text() == "run" and (other / "main.py").read_text() == "other"
    with pytest.raises(DerbyError, match="leads outside"):
        files.write_folder(tmp_path / "cache" / "next", {"../../escaped.py": "x"})
    assert not (tmp_path / "escaped.py").exists()


@pytest.mark.parametrize("step", ["open", "flock"])
def test_a_folder_that_is_taken_for_a_dead_writers_before_it_is_locked(tmp_path, monkeypatch, step):
    """By a process that makes the same folder at that moment, as two that load one solution for the first time do."""
    module = files.fcntl if step == "flock" else os
    real, taken = getattr(module, step), []

    def late(*arguments, **more):
        for folder in () if taken else tmp_path.glob(f".name-hash.*{files.UNFINISHED}"):
            taken.append(folder)
            folder.rmdir()
        return real(*arguments, **more)

    monkeypatch.setattr(module, step, late)
    folder = tmp_path / "name-hash"
    assert files.write_folder(folder, {"main.py": "run"}) == folder and len(taken) == 1
    assert (folder / "main.py").read_text() == "run" and left_beside(folder) == []


def test_many_writers_of_one_file(tmp_path):
    """As of two packs at once: each replaces it in one step, none fails, nothing is left."""
    code = (
        "import sys; from pathlib import Path; from kernelderby.store import files\n"
        "for _ in range(60): files.write_whole(Path(sys.argv[1]), sys.argv[2] * 5000)"
    )
    path = tmp_path / "file"
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}
    runs = [subprocess.Popen([sys.executable, "-c", code, str(path), letter], env=environment) for letter in "abc"]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert path.read_text() in ("a" * 5000, "b" * 5000, "c" * 5000) and left_beside(path) == []


# ---------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_row_that_cannot_be_appended_leaves_the_rows_before_it(tmp_path, monkeypatch, step, error):
    path = tmp_path / "rows.jsonl"
    appended.append_line(path, ROW)
    with monkeypatch.context() as patch:
        failing(patch, step, error)
        with pytest.raises(DerbyError, match="a row could not be appended"):
            appended.append_line(path, ROW)
    assert path.read_text() == ROW + "\n"
    appended.append_line(path, ROW)
    assert path.read_text() == 2 * (ROW + "\n")


def test_half_a_row_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    path, real = tmp_path / "rows.jsonl", os.write
    appended.append_line(path, ROW)

    def half(descriptor, data):
        monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        return real(descriptor, bytes(data)[:100])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(DerbyError, match="No space left"):
        appended.append_line(path, ROW)
    assert path.read_text() == ROW + "\n"


def test_a_true_limit_of_the_file_system(tmp_path):
    """RLIMIT_FSIZE makes the kernel itself write short and then fail."""
    code = """
    import resource, signal, sys
    from pathlib import Path
    from kernelderby.errors import DerbyError
    from kernelderby.store.appended import append_line
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    for number in range(10):
        try:
            append_line(Path(sys.argv[1]), str(number) * 299)
        except DerbyError as error:
            print(number, error)
    """
    path = tmp_path / "rows"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])},
    )
    assert run.returncode == 0 and run.stdout.count("could not be appended") == 7, run.stderr
    assert [line[0] + str(len(line)) for line in path.read_text().splitlines()] == ["0299", "1299", "2299"]


@pytest.mark.parametrize("step", ["fcntl", "write", "fsync"])
def test_a_kill_while_a_row_is_written_loses_no_other(tmp_path, step):
    path = tmp_path / "rows.jsonl"
    appended.append_line(path, ROW)
    killed_at(step, path, "row")
    note = appended.append_line(path, ROW)
    lines = path.read_text().splitlines()
    assert [line for line in lines if line != "second " * 100] == [ROW, ROW]
    assert (note is not None) == (step == "write")
    if note:
        assert (tmp_path / "rows.jsonl.damaged").read_text().startswith("second ")


def test_nothing_is_lost_beside_other_writers_and_a_repair(tmp_path):
    """Three writers, one of whom is killed again and again, and one that repairs."""
    code = """
    import json, sys
    from pathlib import Path
    from kernelderby.store import appended
    from kernelderby.store.appended import append_line, mend_last_line
    appended._LOCK_SECONDS = 10**6  # on a slow disk each waits long for the others
    path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for number in range(count):
        if name == "repair":
            mend_last_line(path)
        else:
            append_line(path, json.dumps({"by": name, "number": number, "text": "x" * 3000}))
            print(number, flush=True)
    """
    path = tmp_path / "rows.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}

    def start(name, count):
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(path), name, str(count)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    path.touch()
    steady = [start("a", 80), start("b", 80), start("repair", 800)]
    told = []
    for number in range(5):
        dying = start(f"dying{number}", 10_000)
        time.sleep(0.25)
        dying.kill()
        told.append((f"dying{number}", len(dying.communicate()[0].split())))
    assert [run.communicate() and run.returncode for run in steady] == [0, 0, 0]
    appended.mend_last_line(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = [(row["by"], row["number"]) for row in rows]
    assert len(set(found)) == len(found)
    for name, count in [("a", 80), ("b", 80), *told]:
        assert {(name, number) for number in range(count)} <= set(found)


@pytest.mark.parametrize(
    ("step", "error"), [("write", errno.ENOSPC), ("open", errno.EROFS), ("mkdir", errno.EACCES), ("fsync", errno.EIO)]
)
def test_a_full_or_read_only_disk_is_seen_beforehand(tmp_path, monkeypatch, step, error):
    path = tmp_path / "h200" / "toy" / "rows.jsonl"
    failing(monkeypatch, step, error)
    with pytest.raises(DerbyError) as caught:
        appended.expect_writable(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not path.exists()


def test_the_look_at_the_disk_leaves_nothing(tmp_path):
    path = tmp_path / "h200" / "rows.jsonl"
    appended.expect_writable(path)
    assert list(path.parent.iterdir()) == []
    path.mkdir()
    with pytest.raises(DerbyError, match="rows.jsonl"):
        appended.expect_writable(path)


def test_who_holds_the_file_for_ever_is_told(tmp_path, monkeypatch):
    path = tmp_path / "rows"
    monkeypatch.setattr(appended, "_LOCK_SECONDS", 0.1)
    with appended._locked(path, create=True):
        with pytest.raises(DerbyError, match="another process has held it"):
            appended.append_line(path, ROW)
    appended.append_line(path, ROW)


# --------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "text",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "",
        ".",
        "a/",
        "a\\b",
        "~/x",
        "C:/x",
        "a\x00b",
        "a\nb",
        "a/..",
        "..",
        "link/x",
        "link",
        "deep/link/x",
    ],
)
def test_paths_that_lead_outside(tmp_path, text):
    inside = tmp_path / "set"
    (inside / "deep").mkdir(parents=True)
    (inside / "link").symlink_to(tmp_path)
    (inside / "deep" / "link").symlink_to("../..")
    with pytest.raises(DerbyError, match="workload u: inputs.x.path"):
        files.inside(inside, text, "workload u: inputs.x.path")


def test_paths_that_stay_inside(tmp_path):
    (tmp_path / "set" / "blob").mkdir(parents=True)
    (tmp_path / "set" / "same").symlink_to("blob")
    for text in ("blob/x.safetensors", "./blob/x", "new/folder/x", "same/x", "a..b", "..."):
        assert files.inside(tmp_path / "set", text, "here") == tmp_path / "set" / text
    (tmp_path / "other").symlink_to("set")
    assert files.is_inside(tmp_path / "other", tmp_path / "set" / "blob")


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
        lambda path: None,
    ],
)
def test_what_is_no_file_is_not_read(tmp_path, make):
    path = tmp_path / "x.jsonl"
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DerbyError, match="x.jsonl: cannot be read") as raised:
        files.read_bytes(path)
    assert not path.is_dir() or "(it is a folder); name a file in it" in str(raised.value)
    assert os.path.lexists(path) or "; mend the name" in str(raised.value)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name)])
def test_what_is_no_file_is_not_replaced(tmp_path, make):
    """As root a device would become a file, and be none for anybody any more."""
    path = tmp_path / "report.html"
    make(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    before = path.lstat().st_mode
    for each in (path, link):
        said = "is a folder; name a file in it" if path.is_dir() else "cannot be written .it is no regular file"
        with pytest.raises(DerbyError, match=said):
            files.write_whole(each, "text")
    assert path.lstat().st_mode == before and set(os.listdir(tmp_path)) == {"report.html", "link"}


# --------------------------------------------------------------------------------------------------------------- locks


@pytest.fixture
def lock_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(appended, "LOCK_FOLDER", tmp_path)
    return tmp_path


def test_one_run_at_a_time_whatever_its_tmpdir(lock_folder, monkeypatch):
    with appended.exclusive_lock("gpu", "another run"):
        monkeypatch.setenv("TMPDIR", str(lock_folder / "elsewhere"))
        with pytest.raises(DerbyError, match="another run"):
            with appended.exclusive_lock("gpu", "another run"):
                pass
        with appended.exclusive_lock("other gpu", "another run"):
            pass
    with appended.exclusive_lock("gpu", "another run"):
        pass


def test_whoever_was_killed_while_making_the_folder_of_locks_mends_it(lock_folder):
    """Under a umask of 077 the others could not look into it for ever."""
    lock_folder.chmod(0o700)
    with appended.exclusive_lock("gpu", "held"):
        assert lock_folder.stat().st_mode & 0o7777 == 0o1777


def test_a_lock_follows_no_link_and_empties_no_file(lock_folder):
    precious = lock_folder / "precious"
    precious.write_text("keep")
    (lock_folder / "gpu.lock").symlink_to(precious)
    with pytest.raises(DerbyError, match="cannot be opened as a lock"):
        with appended.exclusive_lock("gpu", "another run"):
            pass
    assert precious.read_text() == "keep"
    (lock_folder / "file.lock").write_text("content")
    with appended.exclusive_lock("file", "another run"):
        assert (lock_folder / "file.lock").read_text() == "content"
    os.mkfifo(lock_folder / "pipe.lock")
    with pytest.raises(DerbyError, match="no regular file"):
        with appended.exclusive_lock("pipe", "another run"):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_another_user_is_held_off_with_the_reason(monkeypatch, mask):
    """And not by a PermissionError: the file of one user is enough for the lock of all. In a folder that everybody may
    use, as no folder of pytest's is: each session that begins takes that right from all of them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        monkeypatch.setattr(appended, "LOCK_FOLDER", Path(folder, "locks"))
        before = os.umask(mask)
        try:
            _meets_another_user()
        finally:
            os.umask(before)


def _meets_another_user():
    with appended.exclusive_lock("gpu", "another run"):
        child = os.fork()
        if not child:
            os.setuid(65534)
            try:
                with appended.exclusive_lock("gpu", "another run"):
                    os._exit(1)
            except DerbyError as error:
                os._exit(0 if str(error) == "another run" else 2)
            except BaseException:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_link_to_itself_is_no_folder(tmp_path):
    path, told = tmp_path / "a.json", []
    path.symlink_to(path.name)
    assert files.files_under(tmp_path, ".json", told.append) == [path] and told == []
