"""The secret of a session: printed where a check fails, and drawing the same inputs again."""

import json
import shutil

import pytest
from measuring import measure

from kernelderby.measure.judge import secret


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


@pytest.mark.parametrize("odd", ["", "12", "0x1234567890abcdef", "g" * 16, "a" * 65])
def test_what_is_no_secret_is_one_line(derby, inexact, odd):
    code, out, err = derby("check", "honest", "--secret", odd, "--root", inexact)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "--secret: " in err


def test_a_workload_s_secret_follows_from_the_session_s_and_not_back(misbehaviours):
    rows = measure(misbehaviours, ["honest"], secret="5e" * 16)
    assert [row.environment["secret"] for row in rows] == [secret.of_workload("5e" * 16, row.uuid) for row in rows]
    assert len({row.environment["secret"] for row in rows}) == len(rows) > 1
    assert not any("5e5e5e5e" in json.dumps(row.to_trace()) for row in rows)
