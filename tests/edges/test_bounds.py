"""Whatever lies in a set, a verb ends within its bounds: one line names the file and the bound, the rest is read."""

import contextlib
import gzip
import json
import linecache
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mutating import run
from test_strangers import DEFINITION, TRACES, WORKLOADS, D, edit

from kernelderby.catalog import Catalog
from kernelderby.catalog.model import Workload
from kernelderby.catalog.selection import shortest_labels
from kernelderby.errors import DerbyError
from kernelderby.profile.sources.ranges import Paths, swept_timeline
from kernelderby.profile.sources.recognise import open_profile
from kernelderby.store import bounds
from kernelderby.store.bounds import Bounds, reading
from kernelderby.store.fields import read_toml
from kernelderby.store.patterns import Pattern

sys.path.insert(0, str(Path(__file__).parent.parent / "profile"))
from make_nsys import Export

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
SPIN = "sum(number * number for number in range(10**10))"


@pytest.fixture
def within(monkeypatch):
    """Sets the bounds that are in force without any verb."""
    return lambda **few: monkeypatch.setattr(bounds, "_now", bounds._Now(Bounds(**few)))


def export(path):
    with Export(path) as made:
        made.kernel("gemm", 0, 1000)
    return path


def test_bounds_are_read_from_words():
    assert Bounds.parse("time=1.5, memory=4G,names=7") == Bounds(time=1.5, memory=4 << 30, names=7)
    assert Bounds.parse("steps=2e3,unpacked=1K") == Bounds(steps=2000, unpacked=1024)
    for odd in ("time", "time=0", "time=-1", "tme=1", "memory=4T", "time=nan", "time=1e999"):
        with pytest.raises(ValueError, match="is no bound; write name=number"):
            Bounds.parse(odd)
    assert "--bounds: 'tme=1'" in run("list", "--bounds", "tme=1").err.replace("tme=1 is", "'tme=1' is")


# ------------------------------------------------------------------------------------------------------------- SQLite


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "NVTX_EVENTS", "META_DATA_EXPORT"])
def test_a_view_in_place_of_a_table_is_refused(tmp_path, table):
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")] or ["start"]
        database.execute(f"DROP TABLE IF EXISTS {table}")
        each = ", ".join(f"x AS [{column}]" for column in columns)
        database.execute(f"CREATE VIEW {table} AS {ENDLESS.format(each)}")
    with pytest.raises(DerbyError, match=f"{table} is a view, where an export of nsys has a table"):
        open_profile(path)


def test_a_virtual_table_is_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, [end])")
        database.execute("CREATE VIRTUAL TABLE StringIds USING fts5(id, value)")
    with pytest.raises(DerbyError, match="StringIds is a table, where|StringIds is a"):
        open_profile(path)


def test_steps_of_sqlite(tmp_path, within):
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE more AS {ENDLESS.format('x')} LIMIT 50000")
        [table] = [r[0] for r in database.execute("SELECT name FROM sqlite_master WHERE name LIKE '%KIND_KERNEL'")]
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        rest = ", ".join(f"k.[{column}]" for column in columns)
        database.execute(f"INSERT INTO {table} SELECT {rest} FROM {table} AS k, more")
    assert open_profile(path).sums()[0].instances == 50_001
    within(steps=200_000)
    with pytest.raises(DerbyError, match=r"takes more than the bound steps=200000; remove it, or raise that"):
        open_profile(path)


@pytest.mark.parametrize("verb", ["kernels", "activity", "timeline", "layers", "compare", "capture"])
def test_a_name_that_sqlite_cannot_give(tmp_path, monkeypatch, verb):
    """A text over its limit is seen when a row asks for it, in a loop outside of the connection's block."""
    path = tmp_path / "p.sqlite"
    with Export(path) as made:
        made.kernel("x" * 3000, 0, 1000)
    monkeypatch.setattr("kernelderby.profile.sources.sqlite.schema._LONGEST", 2000)
    more = {"timeline": ("--out", tmp_path / "t.json"), "compare": (path,)}.get(verb, ())
    outcome = run(*(["capture"] if verb == "capture" else ["profile", verb]), path, *more)
    assert outcome.code == 1 and "p.sqlite: SQLite says: string or blob too big; export it again" in outcome.err


def test_the_end_of_a_verb_names_its_profile(tmp_path, monkeypatch):
    with Export(tmp_path / "p.sqlite") as made:
        made.kernel("k", 0, 1000)

    def large(*_):
        raise MemoryError

    monkeypatch.setattr("kernelderby.api.profile_file.summarise", large)
    outcome = run("profile", "kernels", tmp_path / "p.sqlite")
    assert "kernels: needs more memory than the bound" in outcome.err and "(in hand: " in outcome.err
    assert "p.sqlite)" in outcome.err


@pytest.mark.parametrize("verb", ["kernels", "activity", "compare"])
def test_gpus_of_one_profile(tmp_path, verb):
    with Export(tmp_path / "p.sqlite") as made:
        for device in range(4):
            made.kernel("k", 1000 * device, 1000 * device + 500, device=device)
    files = [tmp_path / "p.sqlite"] * (2 if verb == "compare" else 1)
    assert run("profile", verb, *files, "--bounds", "names=4").code == 0
    outcome = run("profile", verb, *files, "--bounds", "names=3")
    assert outcome.code == 1 and "p.sqlite: GPUs: 4 are more than the bound names=3" in outcome.err


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_what_lies_beside_a_database_and_is_no_file(tmp_path, ending):
    """SQLite would open it too, and wait at a pipe for ever."""
    path = export(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=wal")
    database.close()
    os.mkfifo(f"{path}{ending}")
    with pytest.raises(DerbyError, match=f"a.sqlite{ending}: is no regular file"):
        open_profile(path)
    os.remove(f"{path}{ending}")
    assert open_profile(path).sums()[0].instances == 1


def test_ranges_that_nest_without_end():
    """Each of 100,000 nested ranges holds the names of all around it, which took 16 GB."""
    paths = Paths()
    timeline = swept_timeline([(i, 1_000_000 - i, f"r{i}") for i in range(100_000)], paths)
    assert len(paths.names) == 257 and paths.names[-1] == tuple(f"r{i}" for i in range(256))
    assert timeline.at(np.array([3, 255, 99_999, 999_997, 1_000_001])).tolist() == [4, 256, 256, 3, 0]


@pytest.mark.parametrize("key", ["a.", '"a" . ', "'a'\t.", "a-b_1 ."])
def test_a_key_of_very_many_parts(tmp_path, key):
    """tomllib would take 16 GB for one of 100,000."""
    path = tmp_path / "a.toml"
    path.write_text(f"x = 1\n[{key * 100_000}b]\ny = 1")
    with pytest.raises(DerbyError, match="a.toml: not TOML .a key of more than 50 parts.; mend that line"):
        read_toml(path)
    path.write_text(f"{key * 40}b = 'a.b. c. ...... 1.2.3 {'word. ' * 30}'\nz = '{'w' * 5_000_000}'")
    assert read_toml(path)["z"] == "w" * 5_000_000


# -------------------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("text", ['{"traceEvents": [' + " " * 3_000_000 + "]}", "Name,Instances\n" + "\n" * 3_000_000])
@pytest.mark.parametrize("is_packed", [True, False])
def test_bytes_of_one_profile(small_set, text, is_packed):
    """The page is made of the rest."""
    folder = small_set / "profiles"
    folder.mkdir()
    data = text.encode()
    (folder / "big.json").write_bytes(gzip.compress(data) if is_packed else data)
    export(folder / "small.sqlite")
    found = run("report", small_set / "r.html", "--bounds", "unpacked=1M", "--root", small_set)
    told = [line for line in found.err.splitlines() if "big.json" in line]
    assert len(told) == 1 and found.code == 0
    assert f"{'unpacks to' if is_packed else 'has'} over the bound unpacked=1M; remove it" in told[0]
    assert "small.sqlite" not in found.err and (small_set / "r.html").is_file()


# -------------------------------------------------------------------------------------------------------------- names


def rows_of_many(root, change, count=8):
    lines = (root / TRACES).read_text().splitlines()
    for number in range(count):
        row = json.loads(lines[0])
        row["measurement"]["session"] = None
        path = change(row, number) or root / TRACES
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def test_gpus_and_protocols_of_one_row_each_make_room(small_set):
    before = run("rank", "--json", "--root", small_set)

    def rows(said):
        return json.loads(said.out)["rankings"][0]["group"]["rows"]

    def gpu(row, number):
        row["evaluation"]["environment"]["hardware"] = f"Made Up {number}"
        return small_set / f"traces/made-up-{number}/toy/{D}.jsonl"

    rows_of_many(small_set, gpu)
    rows_of_many(small_set, lambda row, number: row["measurement"].update(protocol=f"made-up-{number}"))
    found = run("rank", "--json", "--gpu", "h200", "--bounds", "names=3", "--root", small_set)
    assert found.code == 0 and [rows(found), found.code] == [rows(before), 0]
    assert "evaluation.environment.hardware: with" in found.err and "there are 9 different ones" in found.err
    assert "protocol: with" in found.err and "the bound names=3" in found.err


def test_files_of_very_many_definitions_that_there_are_not(small_set):
    """The folder was listed anew for each of them."""
    for number in range(3000):
        (small_set / f"traces/h200/toy/made_up_{number}.jsonl").write_text("")
    for verb in ("list", "rank"):
        found = run(verb, "--root", small_set)
        assert found.code == 0 and "files of no definition, such as 'made_up_0': 3,000 are more than" in found.err


@pytest.mark.parametrize("field", ["constraints", "axes"])
def test_names_of_a_definition(small_set, field):
    many = [f"rows > -{number}" for number in range(400)]
    more = {"constraints": many, "axes": {f"a{number}": {"type": "const", "value": 1} for number in range(400)}}[field]
    edit(small_set / DEFINITION, lambda one: one.update({field: more if field == "constraints" else one[field] | more}))
    assert f"{DEFINITION}: {field}: 40" in run("list", "--root", small_set).err


def test_axes_of_one_tensor(small_set):
    """Also within the bound a product of sizes may fit into no float."""
    edit(small_set / DEFINITION, lambda one: one["outputs"]["y"].update(shape=["rows"] * 400))
    assert f"{DEFINITION}: outputs.y.shape: 400 are more than" in run("list", "--root", small_set).err
    edit(small_set / DEFINITION, lambda one: one["outputs"]["y"].update(shape=["columns"] * 200))
    edit(small_set / DEFINITION, lambda one: one["axes"]["columns"].update(value=2**53))
    for verb in ("list", "rank", "roofline", "report"):
        assert run(verb, "--root", small_set).code in (0, 1)


# --------------------------------------------------------------------------------------------------------------- time


def test_a_file_that_takes_too_long_and_the_next_one(within):
    within(file=0.2)
    began = time.process_time()
    with pytest.raises(DerbyError, match=r"slow: takes longer than the bound file=0.2; remove it"), reading("slow"):
        eval(SPIN)
    assert time.process_time() - began < 2
    with reading("next"):
        pass
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_who_swallows_everything_is_asked_again(within):
    within(file=0.2)
    with pytest.raises(DerbyError, match="slow: takes longer"), reading("slow"):
        try:
            eval(SPIN)
        except BaseException:
            eval(SPIN)


def test_the_sooner_of_two_ends_counts(within):
    within(file=0.2)
    with pytest.raises(DerbyError, match="outer: takes longer"), reading("outer"):
        within(file=9)
        with reading("inner"):
            eval(SPIN)


def test_patterns_of_one_solution_together(within):
    within(patterns=0.1)
    taken = [0.0]
    slow, sound = (Pattern("stage S: kernels", text, taken) for text in ("(a+)+$", "b+"))
    with pytest.raises(DerbyError, match="takes over 1 s on the name"):
        slow.search("a" * 40 + "!")
    with pytest.raises(DerbyError, match="and others take longer than the bound patterns=0.1"):
        sound.search("b")
    assert Pattern("stage T: kernels", "b+", [0.0]).search("b"), "another solution's"


def derby(*words, code=None, **environment):
    """The command in a process of its own, where no test runner waits for the signal: seconds and outcome."""
    began = time.monotonic()
    start = ["-c", code] if code else ["-m", "kernelderby"]
    done = subprocess.run(
        [sys.executable, *start, *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return time.monotonic() - began, done


def blank(path, megabytes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b" \n" * (megabytes << 19))


def test_a_set_of_endless_files_ends_and_shows_the_rest(small_set, tmp_path):
    for number in range(3):
        blank(small_set / f"traces/h200/toy/z{number}.jsonl", 15)
    seconds, done = derby("report", tmp_path / "r.html", "--root", small_set, "--bounds", "time=40,file=0.2")
    assert seconds < 40 and done.returncode == 0 and "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "takes longer than the bound file=0.2" in line]
    assert [line.partition("/toy/")[2][:9] for line in told] == ["z0.jsonl:", "z1.jsonl:", "z2.jsonl:"]
    assert (tmp_path / "r.html").is_file()


def test_the_time_of_a_verb_by_its_environment_and_of_the_processes_that_it_starts(small_set, tmp_path):
    """So many bytes of rows are read by other processes, where pyarrow is installed. None of them holds the pipe."""
    blank(small_set / f"traces/h200/toy/{D}.jsonl", 80)
    seconds, done = derby("rank", "--root", small_set, DERBY_BOUNDS="time=5,file=60", XDG_CACHE_HOME=str(tmp_path))
    assert seconds < 11 and done.returncode == 1 and "Traceback" not in done.stderr
    assert "the bound time=5; remove it" in done.stderr and D in done.stderr


def test_a_file_meets_its_bound_alone_whenever_the_signal_comes(within, monkeypatch):
    """At each instruction of the `with` statement that reads it."""
    within(file=1e-9)
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)  # the signal comes from below

    def read():
        with reading("a.json"):
            sum([1])

    def interrupted(moment):
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            own = frame.f_code.co_filename in (bounds.__file__, contextlib.__file__)
            frame.f_trace_opcodes = own
            in_body = (
                event == "line"
                and frame.f_code is read.__code__
                and "sum" in linecache.getline(__file__, frame.f_lineno)
            )
            if in_body or (own and event == "opcode"):
                seen += 1
                if seen == moment:
                    bounds._over(signal.SIGPROF, frame)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            read()
        except DerbyError as error:
            return "a.json: takes longer" in str(error)
        finally:
            sys.settrace(before)
        return seen < moment and None

    found = [interrupted(1)]
    while found[-1] is not None:
        found.append(interrupted(len(found) + 1))
    assert len(found) > 100 and True in found, "none or the file's own"
    assert not bounds._files and signal.getsignal(signal.SIGPROF) is signal.SIG_DFL


def test_a_bound_met_in_a_destructor_is_met_after_it_without_a_word(within, monkeypatch):
    within(file=0.02)
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Slow:
        def __del__(self):
            until = time.process_time() + 0.1
            while time.process_time() < until:
                pass

    with pytest.raises(DerbyError, match="a.json: takes longer than the bound file=0.02"):
        with reading("a.json"):
            Slow()
            while True:
                pass
    assert told == []


def test_what_looks_at_no_signal_is_ended_from_outside():
    code = """
import signal, time
from kernelderby.store import bounds
bounds._GRACE_SECONDS = 0.3
with bounds.enforced(bounds.Bounds(time=0.5), "report"):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 30))
    time.sleep(60)
"""
    seconds, done = derby(code=code)
    assert done.returncode == -signal.SIGKILL and seconds < 20
    assert (
        done.stderr == "derby: report: takes longer than the bound time=0.5; remove it, or raise that with --bounds\n"
    )


@pytest.mark.parametrize("verb, told", [("doctor", "doctor: takes longer than the bound time=0.1"), ("bench", "None")])
def test_doctor_has_a_bound_of_time_and_what_measures_has_none(verb, told):
    code = f"""
import time
from kernelderby.store import bounds
bounds._SECONDS = 0.1
try:
    with bounds.enforced(None, {verb!r}):
        memory = bounds._now.bounds.memory
        time.sleep(1)
except Exception as problem:
    print(problem)
print(memory)
"""
    out = derby(code=code)[1].stdout
    assert told in out and out.endswith("None\n")


def test_nothing_of_the_watching_is_left(small_set):
    code = """
import os
from kernelderby.store import bounds
with bounds.enforced(None, "report"):
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(len(os.listdir("/proc/self/fd")))
"""
    assert derby(code=code)[1].stdout.strip() == "4"


# ------------------------------------------------------------------------------------------------------------- memory


def test_a_profile_beyond_the_memory_is_left_out(small_set):
    folder = small_set / "profiles"
    folder.mkdir()
    (folder / "big.json").write_text('{"traceEvents": [' + "[]," * 4_000_000 + "[]]}")
    found = derby("report", small_set / "r.html", "--root", small_set, "--bounds", "memory=300M")[1]
    assert found.returncode == 0 and "Traceback" not in found.stderr and (small_set / "r.html").is_file()
    assert "profiles/big.json: needs more memory than the bound memory=300M" in found.stderr


def test_memory_of_a_whole_verb():
    with pytest.raises(
        DerbyError, match="^report: needs more memory than the bound memory=1G; remove it, .*in hand: b.json"
    ):
        with bounds.enforced(Bounds(memory=1 << 30, time=60), "report"):
            with reading("b.json"):
                pass
            raise MemoryError


def test_an_honest_set_meets_none(small_set):
    assert run("list", "--root", small_set).err == ""
    assert len(Catalog.open(small_set).traces()) == 4 and (small_set / WORKLOADS).is_file()


# ---------------------------------------------------------------------------------------------- forms of other tools


def test_bytes_of_a_gzipped_xplane(tmp_path, within):
    plane = b"\x0a\x7f\x12\x05/host:CPU".ljust(4000, b"\0")
    (tmp_path / "x.xplane.pb.gz").write_bytes(gzip.compress(plane + bytes(3_000_000)))
    within(unpacked=1 << 20)
    with pytest.raises(DerbyError, match="unpacks to over the bound unpacked=1M; remove it, or raise that"):
        open_profile(tmp_path / "x.xplane.pb.gz")


def test_bytes_of_what_nsys_exports(tmp_path, within, monkeypatch):
    """The export of a stranger's report may be of any size, and its name may look like an option."""
    nsys = tmp_path / "bin/nsys"
    nsys.parent.mkdir()
    nsys.write_text('#!/bin/sh\n[ -f "$8" ] || exit 7\nexec head -c 9000000 /dev/zero > "$7"\n')
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", str(nsys.parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    report = Path("-h.nsys-rep")
    report.write_bytes(b"\0" * 100)
    within(unpacked=2 << 20)
    with pytest.raises(DerbyError, match="-h.nsys-rep: unpacks to over the bound unpacked=2M"):
        open_profile(report)


def test_what_pyarrow_calls_by_a_name_of_its_own(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    parquet.write_table(pyarrow.table({"start": [1]}), path)

    def broken(*_, **__):
        raise pyarrow.lib.ArrowException("Unknown error:\nno thread")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", broken)
    with pytest.raises(DerbyError, match="KERNEL.parquet: damaged Parquet file .Unknown error: no thread.; export"):
        open_profile(path)


def test_bytes_of_a_parquet_export(tmp_path, within):
    """Ten kilobytes that say one number two hundred thousand times."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    parquet.write_table(pyarrow.table({"start": pyarrow.array([1 << 60] * 200_000)}), path)
    assert path.stat().st_size < 10_000
    within(unpacked=1 << 20)
    with pytest.raises(DerbyError, match=rf"{path.name}: unpacks to over the bound unpacked=1M; remove it"):
        open_profile(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DerbyError, match="it is no regular file"):
        open_profile(tmp_path)


@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_an_environment_that_nests_without_end(small_set, pair):
    deep = pair[:-1] * 900 + "1" + pair[-1] * 900
    path = small_set / TRACES
    path.write_text(path.read_text().replace('"session": "s1", "environment": {', f'"environment": {{"x": {deep}, ', 1))
    found = run("report", small_set / "r.html", "--root", small_set)
    assert found.code == 0 and "left out" not in found.err


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_the_config_of_a_repository_that_is_no_file(small_set, kind):
    (small_set / ".git").mkdir()
    path = small_set / ".git/config"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    assert run("report", small_set / "r.html", "--root", small_set).code == 0


def test_a_profile_that_no_reader_foresaw_costs_itself_alone(small_set, monkeypatch):
    folder = small_set / "profiles"
    folder.mkdir()
    for name in ("a.sqlite", "b_before.sqlite", "b_after.sqlite"):
        export(folder / name)

    def fails(*_):
        raise OverflowError("too large")

    monkeypatch.setattr("kernelderby.page.recordings.shown_kernels", fails)
    monkeypatch.setattr("kernelderby.api.profile_file.ProfileFile.compare", fails)
    found = run("report", small_set / "r.html", "--root", small_set)
    assert found.code == 0 and found.err.count("cannot be shown (OverflowError: too large); this is a defect") == 4


def test_json_larger_than_any_that_people_write(small_set):
    with (small_set / "definitions/toy/more.json").open("wb") as file:
        file.truncate(1 << 30)
    assert "more.json: cannot be read (1,073,741,824 bytes, and 67,108,864 are" in run("list", "--root", small_set).err


# ------------------------------------------------------------------------------------------------------------ symlinks


@pytest.mark.parametrize("part", ["definitions", "solutions", "traces", "workloads", "profiles", "reports/profiles"])
def test_no_room_of_a_set_is_a_link_to_all_of_a_machine(small_set, part):
    if (small_set / part).exists():
        (small_set / part).rename(small_set / "aside")
    (small_set / part).parent.mkdir(exist_ok=True)
    (small_set / part).symlink_to("/")
    verbs = (["list"], ["report", small_set / "r.html"], ["explain", "toy_fast", "--no-compile"])
    said = "".join(run(*verb, "--root", small_set).said for verb in verbs)
    assert "/proc/" not in said and "Traceback" not in said
    assert part == "workloads" or f"{part}: is a symlink to a folder, which is not followed" in said.replace("\n", "")


@pytest.mark.parametrize(
    "part", ["definitions", "definitions/toy", "solutions", "solutions/alice", "traces", "workloads"]
)
def test_no_link_leads_a_verb_out_of_the_set(small_set, tmp_path, part):
    """A link may lead to a whole machine, or to a folder whose permissions end the verb."""
    outside = tmp_path / "outside/a/b/c"
    outside.mkdir(parents=True)
    (outside / "solution.toml").write_text("secret")
    for name, target in (("out", tmp_path / "outside"), ("root", "/"), ("up", ".."), ("self", "self")):
        (small_set / part / name).symlink_to(target)
    for verb in (["list"], ["rank"], ["report", tmp_path / "r.html"]):
        found = run(*verb, "--root", small_set)
        assert found.code == 0 and "secret" not in found.said and "/proc/" not in found.said
        assert part != "solutions" or "is a symlink to a folder, which is not followed" in found.err


NOTEBOOK = """
import resource, signal, sys, time
import kernelderby
def endless(*given, **named):
    while True: pass
def large(*given, **named):
    return [0] * (1 << 32)
found = kernelderby.open(sys.argv[1])
for slow, words in ((endless, "rank: takes longer than the bound time=1;"), (large, "more memory than the bound")):
    kernelderby.api.trace_set.rankings_answer = slow
    try:
        found.rank()
    except kernelderby.DerbyError as error:
        assert words in str(error) and "raise that with $DERBY_BOUNDS" in str(error), error
    else:
        raise AssertionError(words)
assert signal.getitimer(signal.ITIMER_REAL) == (0, 0) and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
"""


def test_a_question_of_a_notebook_ends_within_its_bounds(small_set):
    """The notebook lives on and keeps its objects."""
    for bound, words in (("time=1,memory=1G", ""), ("time=x", "DerbyError: $DERBY_BOUNDS: time=x is no bound")):
        environment, program = os.environ | {"DERBY_BOUNDS": bound}, [sys.executable, "-c", NOTEBOOK, small_set]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == (not words) and words in done.stderr, done.stderr


@pytest.mark.parametrize("is_twin", [True, False], ids=["twins", "one axis each"])
def test_axes_that_tell_shapes_apart_in_two_to_the_fortieth_ways(is_twin):
    names = [f"a{number}" for number in range(40)]
    sizes = [{name: int(name == one) for name in names} for one in [*names, ""]]
    workloads = [
        Workload("d", f"u{n}", each, {}, None, {}) for n, each in enumerate([*sizes, sizes[0]] if is_twin else sizes)
    ]
    labels = shortest_labels(workloads)
    assert len({*labels.values()}) == len(workloads) and labels["u3"].startswith("a0=0, a1=0, a2=0, a3=1, ")


def test_labels_of_very_many_shapes():
    workloads = [Workload("d", f"u{number}", {"m": 1, "n": number % 10_000}, {}, None, {}) for number in range(20_000)]
    began = time.process_time()
    assert shortest_labels(workloads)["u7"] == "n=7 u7"
    assert time.process_time() - began < 5
