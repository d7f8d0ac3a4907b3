"""store/files.py to the byte: limits, modes, files left alone, the words for a path."""

import errno
import fcntl
import gzip
import os
import stat
from pathlib import Path

import pytest

from kernelderby.errors import DerbyError
from kernelderby.store import bounds, files
from kernelderby.store.bounds import Bounds


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("piece", [1, 3, 4, 64])
def test_as_many_bytes_as_the_bound_and_not_one_more(tmp_path, monkeypatch, packed, piece):
    monkeypatch.setattr(files, "_PIECE", piece)
    monkeypatch.setattr(bounds, "_now", bounds._Now(Bounds(unpacked=12)))
    path = tmp_path / "profile"
    path.write_bytes(gzip.compress(b"x" * 12) if packed else b"x" * 12)
    assert files.unpacked(path, packed) == b"x" * 12
    path.write_bytes(gzip.compress(b"x" * 13) if packed else b"x" * 13)
    with pytest.raises(DerbyError, match="unpacks to over" if packed else "has over"):
        files.unpacked(path, packed)


@pytest.mark.parametrize("largest", [files.LARGEST, files.LARGEST_TEXT])
def test_a_file_over_the_largest_is_not_read(tmp_path, largest):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(largest + 1)
    with pytest.raises(DerbyError, match=f"{largest + 1:,} bytes, and {largest:,} are the most"):
        files.read_bytes(path, largest)
    assert (files.LARGEST, files.LARGEST_TEXT) == (1 << 30, 1 << 26), "2 GiB in memory would be a machine's end"
    path.write_bytes(b"seven..")
    assert files.read_bytes(path, 7) == b"seven.."
    assert files.read_bytes(Path("/proc/self/stat")) == b"", "it says that it has no bytes"


def test_a_path_is_too_long_where_the_system_says_so(tmp_path):
    (tmp_path / ("m" * 255)).mkdir()
    for name in ("n" * 255, "n" * 256, "m" * 255 + "/" + "n" * 256, "m" * 255 + "/" + "n" * 255):
        path = os.fsencode(tmp_path) + b"/" + name.encode()
        assert files.too_long(path) == (asked(path) == errno.ENAMETOOLONG), name
    for length in (4095, 4096):
        path = (b"/" + b"n" * 200) * 30
        assert files.too_long(path[:length]) == (asked(path[:length]) == errno.ENAMETOOLONG) == (length > 4095)


def asked(path):
    with pytest.raises(OSError) as caught:
        os.stat(path)
    return caught.value.errno


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_place_for_a_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to("nowhere")
    files.expect_folders(tmp_path, tmp_path / "absent")
    for name in ("file", "lost"):
        with pytest.raises(DerbyError, match=f"{name}: is no folder"):
            files.expect_folders(tmp_path, tmp_path / name)
    for lacking in (os.R_OK, os.X_OK):  # root may look into all
        monkeypatch.setattr(os, "access", lambda path, wanted, lacking=lacking: not wanted & lacking)
        with pytest.raises(DerbyError, match="cannot be looked into"):
            files.expect_folders(tmp_path)


def test_files_under_a_folder(tmp_path):
    told = []
    for name in ("b.json", "a.json", "a.txt", ".hid.json", ".git/c.json", "__pycache__/d.json", "sub.json/e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [".git/c.json", ".hid.json", "__pycache__/d.json", "a.json", "b.json", "sub.json", "sub.json/e.json"]
    assert files.files_under(tmp_path, ".json", told.append) == [tmp_path / name for name in names]
    assert files.files_under(tmp_path, ".json", told.append, hidden=False) == [tmp_path / name for name in names[3:]]
    assert files.files_under(tmp_path / "absent", ".json", told.append) == [] == told
    assert files.files_under(tmp_path / "a.txt", ".json", told.append) == [] and "is no folder" in told.pop()
    (tmp_path / "link").symlink_to("sub.json")
    assert len(files.files_under(tmp_path, ".json", told.append)) == 7
    assert told == [f"{tmp_path}/link: is a symlink to a folder, which is not followed; put the folder itself there"]
    told.clear()
    assert files.files_under(tmp_path / "link", ".json", told.append) == [] == files.folders_below(tmp_path / "link", 0)
    assert told == [f"{tmp_path}/link: is a symlink to a folder, which is not followed; put the folder itself there"]


@pytest.mark.parametrize(("error", "is_told"), [(errno.ENOENT, False), (errno.EIO, True)])
def test_a_folder_that_goes_or_breaks_while_it_is_listed(tmp_path, monkeypatch, error, is_told):
    (tmp_path / "sub").mkdir()
    real, told = os.scandir, []

    def scandir(path):
        if Path(path).name == "sub":
            raise OSError(error, os.strerror(error), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert files.files_under(tmp_path, ".json", told.append) == []
    assert told == [f"{tmp_path}/sub: cannot be looked into ({os.strerror(error)}); mend its permissions"] * is_told
    assert files.folders_below(tmp_path, 2) == []


def test_folders_of_one_level(tmp_path):
    for name in ("b/2", "b/1", "a/3"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/link").symlink_to("3")
    (tmp_path / "a/file").touch()
    assert files.folders_below(tmp_path, 0) == [tmp_path]
    assert files.folders_below(tmp_path, 1) == [tmp_path / "a", tmp_path / "b"]
    assert files.folders_below(tmp_path, 2) == [tmp_path / name for name in ("a/3", "b/1", "b/2")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a b", None),
        ("C", None),
        ("ab:", None),
        ("a/b:c", None),
        ("\x80", None),
        ("", "is empty or holds control characters"),
        ("a\x1f", "is empty or holds control characters"),
        ("a\x7f", "is empty or holds control characters"),
        ("~a", "is not relative"),
        ("/a", "is not relative"),
        ("a\\b", "is not relative"),
        ("C:a", "is not relative"),
        ("a/../b", "leads outside with .."),
        ("a..b/..c", None),
        ("n" * 256, "is longer than a path can be"),
        ("a/", "names no file"),
        ("./.", "names no file"),
        ("./a", None),
    ],
)
def test_the_words_for_a_path(text, problem):
    assert files.relative_problem(text) == problem


def test_a_path_object_is_checked_too(tmp_path):
    assert files.inside(tmp_path, Path("a/b"), "here") == tmp_path / "a/b"
    with pytest.raises(DerbyError, match=r"here: '\.\./b' leads outside with"):
        files.inside(tmp_path, Path("../b"), "here")


# ------------------------------------------------------------------------------------------------------------- writing


def test_a_new_file_may_be_used_by_whom_the_umask_allows(tmp_path, no_umask):
    files.write_whole(tmp_path / "new/er/file", "text")
    assert mode(tmp_path / "new/er/file") == 0o666
    assert (tmp_path / "new/er/file").read_text() == "text"


def test_an_unfinished_file_of_that_name_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "same")
    for make in (Path.touch, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        make(tmp_path / f".file.same{files.UNFINISHED}")
        with pytest.raises(FileExistsError), files.temporary(tmp_path / "file"):
            pass
        (tmp_path / f".file.same{files.UNFINISHED}").unlink()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["file", "a[b]*c?"])
def test_what_dead_processes_left_goes_and_what_is_another_files_stays(tmp_path, name):
    left = [tmp_path / f".{name}.{number}{files.UNFINISHED}" for number in range(3)]
    left[0].touch()
    os.mkfifo(left[1])
    left[2].symlink_to("precious")
    others = [tmp_path / each for each in ("precious", f".ab c.0{files.UNFINISHED}", f".{name}.0")]
    for each in others:
        each.touch()
    files.remove_unfinished(tmp_path / name)
    assert set(tmp_path.iterdir()) == {left[2], *others}, "who opens a link could hold a lock on anything"


@pytest.mark.parametrize("name", ["folder", "a[b]*c?"])
def test_folders_that_dead_processes_left_go_and_a_living_ones_stays(tmp_path, name):
    left = [tmp_path / f".{name}.{number}{files.UNFINISHED}" for number in range(4)]
    for each in (left[0], left[1], tmp_path / "precious"):
        each.mkdir()
        (each / "file").touch()
    left[2].symlink_to("precious")
    os.mkfifo(left[3])
    descriptor = os.open(left[1], os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made = files.write_folder(tmp_path / name, {"deep/er/file": "text", "deep/er/other": "text", "deep/one": ""})
    os.close(descriptor)
    assert (made / "deep/er/file").read_text() == "text"
    assert set(tmp_path.iterdir()) == {made, left[1], left[2], left[3], tmp_path / "precious"}
    assert (tmp_path / "precious/file").exists()


def test_a_folder_is_locked_while_it_is_written_and_not_afterwards(tmp_path, monkeypatch):
    real, was_locked = Path.write_text, []

    def write_text(path, *arguments, **more):
        descriptor = os.open(path.parent, os.O_DIRECTORY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        was_locked.append(True)
        return real(path, *arguments, **more)

    monkeypatch.setattr(Path, "write_text", write_text)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("new/er/est", "new/other"):
        files.write_folder(tmp_path / name, {"file": "text"})
    assert was_locked == [True, True] and len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_takes_a_byte_at_a_time_and_then_none(tmp_path, monkeypatch):
    real, most = os.write, [20]

    def write(descriptor, data):
        most[0] -= 1
        return real(descriptor, bytes(data)[:1]) if most[0] >= 0 else 0

    monkeypatch.setattr(os, "write", write)
    files.write_whole(tmp_path / "file", "x" * 20)
    assert (tmp_path / "file").read_text() == "x" * 20
    with pytest.raises(DerbyError, match="No space left"):
        files.write_whole(tmp_path / "file", "y" * 20)
    assert (tmp_path / "file").read_text() == "x" * 20


def test_the_folder_of_a_new_name_reaches_the_disk_too(tmp_path, monkeypatch):
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda each: (synced.append(os.readlink(f"/proc/self/fd/{each}")), real(each)))
    files.write_whole(tmp_path / "file", "x")
    assert len(synced) == 2 and synced[1] == str(tmp_path)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "there is not enough memory"),
        (OSError(errno.EIO, "broken"), "broken"),
        (OSError("in words"), "in words"),
        (ValueError("a value"), "a value"),
    ],
)
def test_a_system_error_becomes_a_reason(error, told):
    assert files.reason(error) == told


@pytest.mark.parametrize(
    ("named", "found"),
    [("/somewhere/else", "/somewhere/else"), ("relative", "/home/me/.cache"), ("", "/home/me/.cache")],
)
def test_where_caches_lie(monkeypatch, named, found):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert files.cache_home() == found


@pytest.mark.parametrize("may", [True, False])
def test_a_folder_is_writable_where_both_rights_are_there(tmp_path, monkeypatch, may):
    """The rights of root, as whom tests may run, are no file's."""
    asked = []
    monkeypatch.setattr(os, "access", lambda place, rights: asked.append((place, rights)) or may)
    monkeypatch.setattr(files, "expect_folders", lambda folder: None)
    if may:
        files.expect_writable(tmp_path / "new/folder")
    else:
        with pytest.raises(DerbyError, match=f"mend the permissions of {tmp_path}, or"):
            files.expect_writable(tmp_path / "new/folder")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
