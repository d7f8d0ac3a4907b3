"""The secret of a session: printed where a check fails, and drawing the same inputs again."""

import json
import shutil

import pytest
from measuring import CPU, measure

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster import serve
from kernelderby.measure.cluster.messages import TaskAsked
from kernelderby.measure.judge import secret
from kernelderby.measure.judge.definition import _modules


@pytest.fixture
def inexact(misbehaviours):
    """A solution whose error depends on the inputs alone."""
    folder = misbehaviours / "solutions/tests/elementwise/scaled_add_n16"
    shutil.copytree(folder / "honest", folder / "inexact")
    config, main = folder / "inexact/solution.toml", folder / "inexact/main.py"
    config.write_text(config.read_text().replace('"honest"', '"inexact"'))
    main.write_text(
        main.read_text()
        + "\n\n_right = run\n\n\ndef run(x, y, factor, out):\n    _right(x, y, factor, out)\n    out += x * x\n"
    )
    return misbehaviours


def errors(derby, root, *words):
    code, out, err = derby("check", "inexact", "--device", "cpu", "--json", *words, "--root", root)
    assert code == 1 and err == ""
    found = json.loads(out)
    return found["secret"], [each["correctness"]["max_absolute_error"] for each in found["results"]]


def test_a_failing_check_is_repeated_by_the_secret_that_it_printed(derby, inexact):
    printed, first = errors(derby, inexact)
    assert len(printed) == 32 and any(first)
    assert errors(derby, inexact, "--secret", printed) == (printed, first)
    other, second = errors(derby, inexact)
    assert other != printed and second != first
    code, out, _ = derby("check", "inexact", "--device", "cpu", "--secret", printed, "--root", inexact)
    assert code == 1 and f"derby check inexact --secret {printed}" in out
    _, out, _ = derby("check", "honest", "--device", "cpu", "--secret", printed, "--root", inexact)
    assert "--secret" not in out  # nothing to repeat


SPACE = '\nAXES_SPACE = {"rows": (1, 64), "factor": [2.0, -3.0]}\n'


def test_fresh_shapes_and_a_cluster_host_repeat_it_too(derby, inexact):
    """Bit for bit: the same errors at the same shapes, by this command and by what runs on a host for `--ray`."""
    source = inexact / "definitions/elementwise/scaled_add_n16.py"
    source.write_text(source.read_text() + SPACE)
    _modules.clear()
    printed, first = errors(derby, inexact, "--fresh", "3")
    assert len(set(first)) == 3 and all(first)
    assert errors(derby, inexact, "--fresh", "3", "--secret", printed) == (printed, first)
    given = {"workloads": [], "seeds": 1, "origins": [], "fresh": 3, "timeout": 30.0, "secret": printed}
    answer = serve._checked(Catalog.open(inexact), CPU, TaskAsked("check", "", ("inexact",), None, given))
    assert [each.correctness.max_absolute_error for each in answer.results] == first
    _, listed = errors(derby, inexact, "--secret", printed)
    given["fresh"] = 0
    answer = serve._checked(Catalog.open(inexact), CPU, TaskAsked("check", "", ("inexact",), None, given))
    assert [each.correctness.max_absolute_error for each in answer.results] == listed


@pytest.mark.parametrize("odd", ["", "12", "0x1234567890abcdef", "g" * 16, "a" * 65])
def test_what_is_no_secret_is_one_line(derby, inexact, odd):
    code, out, err = derby("check", "honest", "--secret", odd, "--root", inexact)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "--secret: " in err


def test_a_workload_s_secret_follows_from_the_session_s_and_not_back(misbehaviours):
    rows = measure(misbehaviours, ["honest"], secret="5e" * 16)
    assert [row.environment["secret"] for row in rows] == [secret.of_workload("5e" * 16, row.uuid) for row in rows]
    assert len({row.environment["secret"] for row in rows}) == len(rows) > 1
    assert not any("5e5e5e5e" in json.dumps(row.to_trace()) for row in rows)
