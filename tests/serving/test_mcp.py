"""derby mcp, spoken to as a client does; the scratch folder and the budget."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from typing import get_args

import pytest

from kernelderby.authoring.solution import LANGUAGES
from kernelderby.errors import DerbyError
from kernelderby.rows.checked import CheckResult
from kernelderby.serving.session import Session
from kernelderby.serving.tools import Language, Verbs, server

D = "scale_rows_h4"
TOOLS = {"list", "show", "prompt", "new", "check", "bench", "explain", "rank", "gate"}


@pytest.fixture(scope="module", autouse=True)
def installed():
    """Imported where these tests run alone: it takes seconds, and every process of tests collects this file."""
    pytest.importorskip("mcp")


def run_apart(coroutine):
    """In a thread: Playwright leaves an event loop in the one of the tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def files_of(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def spoken(root, scratch, *calls, seconds=300):
    """The tools, and the result of each call (name, arguments)."""
    from mcp import ClientSession, StdioServerParameters, stdio_client

    async def speak():
        words = ["-m", "kernelderby", "mcp", "--root", str(root), "--scratch", str(scratch)]
        parameters = StdioServerParameters(
            command=sys.executable,
            args=[*words, "--gpu-seconds", str(seconds)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        async with stdio_client(parameters) as pipes, ClientSession(*pipes) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            return tools, [await session.call_tool(name, arguments) for name, arguments in calls]

    return run_apart(speak())


def test_tools_their_types_and_errors(small_set, tmp_path):
    before = files_of(small_set)
    tools, (listed, prompt, made, ranked, explained, benched, wrong, unknown, *options) = spoken(
        small_set,
        tmp_path / "scratch",
        ("list", {"words": "toy"}),
        ("prompt", {"operator": D}),
        ("new", {"name": "mine", "operator": D, "language": "python", "files": {"extra.py": "A = 1\n"}}),
        ("rank", {"operator": D}),
        ("explain", {"solution": "toy_fast", "workload": "1000"}),
        ("bench", {"solutions": ["mine"]}),
        ("new", {"name": "mine", "operator": D, "files": {"../../evil.py": ""}}),
        ("show", {"operator": "no_such"}),
        ("check", {"solution": f"--dump={tmp_path}/evil.safetensors"}),
        ("list", {"words": "--plot=evil.py"}),
        ("new", {"name": "other", "operator": D, "language": "rust"}),
        ("show", {"definition": D}),
    )
    says = ("no solution", "no operator matches", "'cuda'", "show: operator: Field required; it takes operator")
    for refused, said in zip(options, says, strict=True):  # a program's words are never options
        assert refused.is_error and said in refused.content[0].text and "\n" not in refused.content[0].text
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.output_schema and tool.description for tool in tools)
    assert listed.structured_content["result"][0]["name"] == D
    assert prompt.content[0].text.startswith(f"# Task: the fastest `{D}`")
    assert set(made.structured_content["files"]) >= {"main.py", "extra.py", "solution.toml"}
    places = {each["solution"]: each["place"] for each in ranked.structured_content["solutions"]}
    assert places == {"toy_fast": 1, "toy_baseline": 2, "mine": None}
    assert explained.structured_content["time_us"] == 4.0 and explained.structured_content["rival"] == "toy_baseline"
    for failed, said in ((benched, "GPU"), (wrong, "is no path of a source file"), (unknown, "no operator")):
        assert failed.is_error and said in failed.content[0].text and failed.content[0].text.count("\n") == 0
    assert files_of(small_set) == before and not list(tmp_path.rglob("evil.py"))


def test_candidates_are_written_and_checked_in_a_loop(checkout, tmp_path):
    """One of the ten that `python benchmarks/candidates_loop.py` has."""
    spec = spec_from_file_location("loop", checkout / "benchmarks/candidates_loop.py")
    loop = module_from_spec(spec)
    spec.loader.exec_module(loop)
    found = run_apart(loop.play(checkout, tmp_path / "scratch", [loop.BODIES[5]]))
    assert [statuses for _, _, statuses in found] == [{"raised"}]


def test_a_wrong_candidate_is_told_where(small_set, tmp_path, monkeypatch):
    """The reasons of `derby check`, which a program mends by."""
    case = {"case": "small", "status": "wrong_values", "message": "1 of 4", "why": ["output[0]: got 1, expected 2"]}
    found = {"results": [{**case, "correctness": None}], "broken": {}, "device": "CPU", "secret": "", "skipped": {}}
    monkeypatch.setattr(Session, "derby", lambda *_: found)
    [told] = Verbs(Session.begin(small_set, tmp_path / "scratch", 10)).check("mine").cases
    assert told.why == case["why"] and CheckResult.__dataclass_fields__["why"]


def test_the_languages_are_those_of_derby_new():
    assert get_args(Language) == tuple(LANGUAGES)


def test_a_withdrawn_call_ends_its_command_and_the_next_one_begins(small_set, tmp_path, monkeypatch):
    """Measuring commands take turns: two at once would share a GPU and the budget."""
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 600\n")
    command.chmod(0o755)
    monkeypatch.setattr("kernelderby.api.fenced_verbs.sys.executable", str(command))
    session = Session.begin(small_set, tmp_path / "scratch", 60)
    started = tmp_path / "started"

    async def cancelled():
        calls = [asyncio.create_task(server(session).call_tool("check", {"solution": "toy_fast"})) for _ in range(2)]
        while not started.is_file() or not started.read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = run_apart(cancelled())
    assert [*map(type, found)] == [asyncio.CancelledError] * 2
    with session._one_at_a_time:  # free again
        [number] = started.read_text().split()  # the second one waited and was never started
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)
    assert 0 < session.seconds < 60


def test_a_spent_budget_is_an_error(small_set, tmp_path, monkeypatch):
    session = Session.begin(small_set, tmp_path / "scratch", 0.05)
    with pytest.raises(DerbyError, match="took longer than 0 s"):
        session.derby("check", "toy_fast")
    with pytest.raises(DerbyError, match="budget is spent"):
        session.derby("bench")
    assert session.derby("list")["of_operators"] == 1  # reading costs nothing


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("../up", {}, "name"),
        ("mine", {"/etc/passwd.py": ""}, "files"),
        ("mine", {"a/../../b.py": ""}, "files"),
        ("mine", {"solution.toml": ""}, "files"),
        ("mine", {"main.py": "x" * (2 << 20)}, "longer"),
        (
            "mine",
            {"main.py": "def run(x, scale, factor):\n    return x\n"},
            r"run\(\) takes the inputs alone",
        ),
        ("mine", {"main.py": "def run(x, scale:\n"}, "main.py:1: '.' was never closed; mend it"),
        ("toy_fast", {"main.py": ""}, "is a solution of alice"),
    ],
)
def test_nothing_outside_of_the_candidates_is_written(small_set, tmp_path, name, files, said):
    session = Session.begin(small_set, tmp_path / "scratch", 10)
    before = files_of(tmp_path)
    with pytest.raises(DerbyError, match=said):
        session.write(name, D, "python", files)
    allowed = session.scratch / "solutions/candidates"
    assert all(path.is_relative_to(allowed) for path in set(files_of(tmp_path)) - set(before))


def test_a_link_in_a_candidate_is_not_followed(small_set, tmp_path):
    session = Session.begin(small_set, tmp_path / "scratch", 10)
    folder = session.write("mine", D, "python", {})
    (tmp_path / "outside").mkdir()
    (folder / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(DerbyError):
        session.write("mine", D, "python", {"sub/a.py": "x"})
    assert not list((tmp_path / "outside").iterdir())


def test_a_folder_with_other_files_is_no_scratch(small_set, tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(DerbyError, match="no scratch folder"):
        Session.begin(small_set, tmp_path, 10)
    again = Session.begin(small_set, tmp_path / "new", 10)
    assert Session.begin(small_set, again.scratch, 10).scratch == again.scratch


def test_a_signal_ends_the_server_promptly(small_set, tmp_path):
    """Its client still holds the pipe, from which a thread reads."""
    words = [
        sys.executable,
        "-m",
        "kernelderby",
        "mcp",
        "--root",
        str(small_set),
        "--scratch",
        str(tmp_path / "scratch"),
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, bufsize=1, **pipes) as started:
        asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        started.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}) + "\n")
        assert "kernelderby" in started.stdout.readline()
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=10) == 128 + signal.SIGTERM  # unwinding would take signals.py's 20 seconds
        assert started.stderr.read().endswith("derby: ended by SIGTERM; what is written stays\n")
