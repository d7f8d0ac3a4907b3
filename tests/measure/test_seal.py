"""A sealed session: what derby verify takes, and each way in which a service could cheat afterwards."""

import json
import os
import shutil
import subprocess

import pytest
from measuring import CPU, copied_set

from kernelderby.catalog import Catalog
from kernelderby.cli import derby as command
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.secret import of_workload
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.seal import commitment, entry_hash, sha256, sign
from kernelderby.measure.run.verify import verify
from kernelderby.report.verified import seal_problems

pytest.importorskip("torch")
NAMES = ["honest", "not_a_number"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A set with the rows of two sessions, the later one sealed; its seal and its notes."""
    from kernelderby.measure.run.runner import Runner

    root, notes = copied_set(tmp_path_factory.mktemp("sealed")), []

    class Told(Observer):
        def note(self, line):
            notes.append(line)

    for sealed in (False, True):
        catalog = Catalog.open(root)
        settings = Settings(rounds=1, most_rounds=1, iterations=2, timeout_seconds=30, again=True, sealed=sealed)
        plan = make_plan(catalog, CPU, settings, NAMES, workloads=("8",))
        runner = Runner(catalog, CPU, settings, Told())
        assert len(runner.run(plan)) == 2
    return root, runner.seal, settings.secret, notes


@pytest.fixture
def sealed(session, tmp_path):
    """A copy of the sealed set, to spoil."""
    root = tmp_path / "set"
    shutil.copytree(session[0], root)
    return root, root / session[1].relative_to(session[0])


def test_a_sealed_session_holds(session):
    root, seal, secret, notes = session
    (verified,) = verify(root / "traces")
    assert verified.problems == [] and verified.rows == 2 and verified.signed is None
    entries = [json.loads(line) for line in seal.read_text().splitlines()]
    kinds = [entry["kind"] for entry in entries]
    assert kinds[0] == "begin" and kinds[-1] == "end" and kinds.count("row") == 2
    assert secret not in "\n".join(seal.read_text().splitlines()[:-1]), "the secret comes last"
    assert entries[0]["commitment"] == commitment(entries[0]["session"], secret) == verified.commitment
    assert any(verified.commitment in note and "publish it" in note for note in notes)


def rewritten(seal, change, again=False):
    """The entries through change(), with new hashes where again: by somebody who knows how."""
    entries = change([json.loads(line) for line in seal.read_text().splitlines()])
    previous = ""
    for entry in entries:
        told = entry.pop("hash")
        if again:
            entry["previous"] = previous
            told = previous = entry_hash(entry)
        entry["hash"] = told
    seal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def with_secret(entries):
    entries[-1]["secret"] = "0" * 32
    return entries


def with_other_code(entries):
    entries[0]["solutions"]["honest"] = "0" * 64
    return entries


@pytest.mark.parametrize(
    ("change", "again", "told"),
    [
        (lambda entries: entries[:1] + entries[2:], False, "line 2 does not follow"),
        (lambda entries: entries[:-1], False, "has no end"),
        (lambda entries: [*entries, dict(entries[1])], False, "does not follow"),
        (with_other_code, False, "line 1 does not follow"),
        (with_secret, True, "the secret is not the one that was committed to"),
        (with_secret, True, "2 rows with inputs that the secret does not draw"),
        (with_other_code, True, "1 row of code that the session did not begin with"),
        (lambda entries: [each for each in entries if each["kind"] != "row"], True, "2 rows of the session in"),
        (lambda entries: entries[1:], True, "does not begin with a commitment"),
        (lambda entries: [*entries[:-1], dict(entries[1]), entries[-1]], True, "1 row sealed twice"),
        (lambda entries: [], True, "does not begin with a commitment"),
    ],
)
def test_a_changed_seal_does_not(sealed, change, again, told):
    root, seal = sealed
    rewritten(seal, change, again)
    (verified,) = verify(root)
    assert any(told in problem for problem in seal_problems(verified)), verified.problems


def test_a_commitment_fits_one_secret_alone(sealed):
    root, seal = sealed
    session = json.loads(seal.read_text().splitlines()[0])["session"]
    assert commitment(session, f"a\n{'0' * 32}") == commitment(f"{session}\na", "0" * 32)

    def of_lines(entries):
        secret = "\n".join(["0" * 32] * 2)
        entries[0]["commitment"], entries[-1]["secret"] = commitment(session, secret), secret
        return entries

    rewritten(seal, of_lines, again=True)
    (verified,) = verify(root)
    assert "the secret is not the one that was committed to" in seal_problems(verified), verified.problems


def test_a_field_that_stands_twice_breaks_the_chain(sealed):
    root, seal = sealed
    text = seal.read_text()
    seal.write_text(text.replace('"secret": "', '"secret": "another", "secret": "'))
    assert json.loads(seal.read_text().splitlines()[-1]) == json.loads(text.splitlines()[-1])
    (verified,) = verify(root)
    assert any("does not follow" in problem for problem in seal_problems(verified)), verified.problems


def older(lines):
    """As if they had been measured long before: two sessions of a test may share a second."""
    return [line.replace(b'"timestamp": "2', b'"timestamp": "1') for line in lines]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [line.replace(b'"eager"', b'"eager" ') for line in lines], "not in the files as they were"),
        (lambda lines: lines[:-1], "1 row sealed and not in the files"),
        (lambda lines: [*lines, lines[-1].replace(b"evaluation", b"evaluation2")], "1 row of the session in"),
        (lambda lines: [*lines, lines[-1]], "1 row of the session twice in the files"),
        (lambda lines: [*lines[2:], *older(lines[:2])], "older rows stand behind 2 rows of the session"),
    ],
)
def test_rows_that_were_changed_dropped_or_added(sealed, change, told):
    root, seal = sealed
    (rows,) = (root / "traces").rglob("*.jsonl")
    rows.write_bytes(b"".join(line + b"\n" for line in change(rows.read_bytes().splitlines())))
    (verified,) = verify(seal)
    assert any(told in problem for problem in seal_problems(verified)), verified.problems


def test_broken_rows_and_seals_are_problems_and_the_rest_is_looked_at(sealed):
    root, seal = sealed
    (rows,) = (root / "traces").rglob("*.jsonl")
    row = json.loads(rows.read_bytes().splitlines()[-1])
    changes = [{"workload": None}, {"workload": [1]}, {"solution": [[]]}, {"solution": None}]
    broken = [{**row, **change} for change in changes]
    broken += [{**row, "measurement": {**row["measurement"], "environment": each}} for each in ([1], {"secret": [1]})]
    with rows.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in [*broken, {"measurement": {"session": [1]}}, 5])
        name = json.dumps(row["measurement"]["session"])
        file.write(json.dumps(row).replace(name, "".join(f"\\u{ord(c):04x}" for c in name[1:-1]).join('""')) + "\n")
    os.mkfifo(seal.with_name("a.seal"))
    seal.with_name("b.seal").write_text('["x"]\n')
    (rows.parent / "z.jsonl").symlink_to("/dev/zero")
    verified, pipe, other = verify(root / "traces")
    assert "it is no regular file" in seal_problems(pipe)[0] and "line 1 does not follow" in seal_problems(other)[0]
    assert any("z.jsonl: cannot be read" in problem for problem in seal_problems(verified))
    assert "7 rows of the session in the files and not sealed" in seal_problems(verified), verified.problems
    assert "2 rows of code that the session did not begin with" in seal_problems(verified)
    assert "4 rows with inputs that the secret does not draw" in seal_problems(verified), verified.problems


@pytest.mark.parametrize(
    "hidden",
    [
        lambda line: line.replace(b"{", b"{\r", 1),  # for JSON a space, for other readers the end of a line
        lambda line: line.replace(b"{", b'{"later": %s, ' % (b"1" * 5000), 1),  # more digits than Python reads
        lambda line: line.replace(b'"log": "', b'"log": "\\ud800', 1),  # half a pair: msgspec refuses it
    ],
)
def test_a_row_that_is_ranked_is_found(sealed, hidden):
    root, seal = sealed
    (rows,) = (root / "traces").rglob("*.jsonl")
    before = len(Catalog.open(root).traces())
    *_, last = rows.read_bytes().splitlines()
    rows.write_bytes(rows.read_bytes() + hidden(last) + b"\n")
    assert len(Catalog.open(root).traces()) == before + 1
    (verified,) = verify(seal)
    assert "1 row of the session in the files and not sealed" in seal_problems(verified), verified.problems


def sealed_row(root, seal, change):
    """A service's forgery: the first row of the session changed, and sealed so."""
    (rows,) = (root / "traces").rglob("*.jsonl")
    entries = [json.loads(line) for line in seal.read_text().splitlines()]
    told = next(entry for entry in entries if entry["kind"] == "row")["sha256"]
    lines = rows.read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if sha256(line.encode()) == told)
    row = json.loads(lines[place])
    change(row)
    lines[place] = json.dumps(row)
    rows.write_text("".join(f"{line}\n" for line in lines))
    new = sha256(lines[place].encode())
    rewritten(
        seal, lambda found: [{**each, "sha256": new} if each.get("sha256") == told else each for each in found], True
    )


def test_inputs_that_a_service_chose_do_not_hold(session, sealed):
    secret = session[2]

    def without(row):
        del row["measurement"]["environment"]["secret"]

    def apart(row, name):
        own = of_workload(secret, row["workload"]["uuid"], name)
        row["measurement"]["environment"] |= {"apart": name, "secret": own}

    root, seal = sealed
    for change, holds in (
        (without, False),
        (lambda row: apart(row, "the name of many that draws easy inputs"), False),
        (lambda row: apart(row, row["solution"]), True),
        (lambda row: row["measurement"]["environment"].update(draw=99), False),
        (lambda row: row["measurement"]["environment"].update(draw=0), True),
    ):
        sealed_row(root, seal, change)
        (verified,) = verify(seal)
        told = ["1 row with inputs that the secret does not draw"]
        assert seal_problems(verified) == ([] if holds else told), verified.problems


TOOLS = {"ssh-keygen": ("{}", "{}.pub", ".sig"), "minisign": ("{}.key", "{}.pub", ".minisig")}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_signature_holds_for_the_key_and_the_bytes(sealed, tmp_path, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    (root, seal), (secret, public, suffix) = sealed, TOOLS[tool]
    keys = {}
    for name in ("judge", "other"):
        keys[name] = tmp_path / secret.format(name), tmp_path / public.format(name)
        made = {
            "ssh-keygen": ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys[name][0]],
            "minisign": ["minisign", "-G", "-W", "-s", keys[name][0], "-p", keys[name][1]],
        }
        subprocess.run(made[tool], check=True, capture_output=True)
    (unsigned,) = verify(seal, keys["judge"][1])
    assert unsigned.signed is False and "signature" in seal_problems(unsigned)[0]
    assert sign(seal, keys["judge"][0]).name == seal.name + suffix
    assert [each.problems for each in verify(root, keys["judge"][1])] == [[]]
    (other,) = verify(seal, keys["other"][1])
    assert other.signed is False and len(other.problems) == 1
    rewritten(
        seal, lambda entries: [{**each, "text": "a"} if each["kind"] == "note" else each for each in entries], True
    )
    with seal.open("a") as file:
        file.write("\n")
    (changed,) = verify(seal, keys["judge"][1])
    assert changed.signed is False
    with pytest.raises(DerbyError, match="cannot be read"):
        sign(seal, tmp_path / "none")


def test_the_command_finds_a_whole_session(sealed, capsys):
    root, seal = sealed
    with pytest.raises(SystemExit) as ended:
        command(["verify", "--root", str(root), "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert not ended.value.code and found["problems"] == [] and found["rows"] == 2
    rewritten(seal, with_secret)
    with pytest.raises(SystemExit) as ended:
        command(["verify", str(seal)])
    out = capsys.readouterr().out
    assert ended.value.code == 1 and out.startswith("FAIL  ") and max(map(len, out.splitlines())) <= 80
    with pytest.raises(DerbyError, match="definitions: holds no sealed session"):
        verify(root / "definitions")
    with pytest.raises(DerbyError, match="nowhere: does not exist, so it holds no sealed session"):
        verify(root / "nowhere")


def test_a_key_that_cannot_be_read_ends_the_run_before_it_begins(derby, sealed):
    root, _ = sealed
    words = ("--device", "cpu", "--sealed", "--again", "--sign", root / "no.key", "--root", root)
    code, out, err = derby("bench", *words)
    assert (code, out) == (1, "") and "no.key: cannot be read" in err and err.count("\n") == 1


REMEMBERS = """import os
from pathlib import Path

import torch

PLACE = Path(os.environ["XDG_CACHE_HOME"], "seen")
PLACE.parent.mkdir(parents=True, exist_ok=True)
KNOWN = PLACE.exists()
PLACE.write_text("an answer")


def run(x, y, factor, out):
    if KNOWN:
        raise RuntimeError("it remembers")
    torch.add(x, y, alpha=factor, out=out)
"""


def test_nobody_remembers_an_earlier_run_in_a_sealed_session(tmp_path):
    from kernelderby.measure.run.runner import Runner

    root, found = copied_set(tmp_path), []
    (main,) = (root / "solutions").rglob("honest/main.py")
    main.write_text(REMEMBERS)
    for sealed in (False, True, False):
        catalog = Catalog.open(root)
        settings = Settings(rounds=1, most_rounds=1, iterations=2, timeout_seconds=30, again=True, sealed=sealed)
        (row,) = Runner(catalog, CPU, settings, Observer()).run(
            make_plan(catalog, CPU, settings, ["honest"], workloads=("8",))
        )
        found.append(row.status.value)
    assert found == ["passed", "passed", "raised"], "in others it finds what it compiled"


def test_each_workloads_secret_is_drawn_from_the_sessions(session):
    root, seal, secret, _ = session
    for row in Catalog.open(root).traces():
        if row.session == json.loads(seal.read_text().splitlines()[0])["session"]:
            assert row.environment["secret"] == of_workload(secret, row.uuid)
