"""docs/gate.yml: nothing in it moves or is a stranger's, and its scripts do what docs/gate.md says, with stand-ins for
derby and gh."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

yaml = pytest.importorskip("yaml")

STAND_IN = {
    "derby": '#!/bin/sh\necho "$@" >> calls\n[ $ENDS = usage ] && exit 2\n'
    'echo "{}"; echo "**derby gate: told**" > gate.md; exit $ENDS\n',
    "gh": '#!/bin/sh\necho "$@" >> calls\ncase "$*" in *--paginate*) [ -z "$LAST" ] || echo "$LAST";; esac\n',
}


@pytest.fixture
def workflow(checkout):
    return yaml.safe_load((checkout / "docs/gate.yml").read_text())


def test_it_may_read_and_comment_and_runs_no_fork_and_nothing_that_moves(workflow):
    assert workflow[True] == "pull_request"  # YAML 1.1 reads `on` so; never pull_request_target
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    (job,) = workflow["jobs"].values()
    assert job["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    assert "permissions" not in job and job["timeout-minutes"] <= 60
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 2 and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used), used
    assert job["steps"][0]["with"] == {"fetch-depth": 0, "persist-credentials": False}
    assert not any("${{" in step.get("run", "") for step in job["steps"])  # a branch's name is no script


@pytest.fixture
def step(workflow, tmp_path):
    """step(name, **environment) -> exit code and the calls of derby and gh."""
    scripts = {each["name"]: each["run"] for each in workflow["jobs"]["gate"]["steps"] if "name" in each}
    for place in (tmp_path / "derby/bin", tmp_path / "work"):
        place.mkdir(parents=True)
    for name, text in STAND_IN.items():
        file = tmp_path / "derby/bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def run(name, **given):
        (tmp_path / "work/calls").write_text("")
        environment = {
            **{"PATH": f"{tmp_path}/derby/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "BASE": "abc"},
            **{"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "SOLUTION": workflow["env"]["SOLUTION"]},
            **{"COMMENTS": "repos/o/r/issues/7/comments", **given},
        }
        done = subprocess.run(["bash", "-e", "-c", scripts[name]], cwd=tmp_path / "work", env=environment, text=True)
        return done.returncode, (tmp_path / "work/calls").read_text()

    return run


@pytest.mark.parametrize(("ends", "code"), [("0", 0), ("1", 1), ("2", 0), ("usage", 2)])
def test_it_fails_on_a_regression_and_on_a_wrong_option_alone(step, tmp_path, ends, code):
    assert step("gate", ENDS=ends) == (code, "gate my_kernel@abc my_kernel --comment gate.md --json\n")
    told = tmp_path / "summary"
    assert ends == "usage" or told.read_text() == "**derby gate: told**\n"


def test_one_comment_that_later_runs_replace(step):
    first, later = step("comment", LAST=""), step("comment", LAST="https://api/comments/5")
    assert first[0] == later[0] == 0
    assert first[1].splitlines()[-1] == "api repos/o/r/issues/7/comments --field body=@gate.md --silent"
    assert later[1].splitlines()[-1] == "api --method PATCH https://api/comments/5 --field body=@gate.md --silent"


def test_the_comment_that_it_looks_for_is_that_of_the_gate(workflow, checkout):
    (marker,) = re.findall(r'startswith\("([^"]+)"\)', workflow["jobs"]["gate"]["steps"][3]["run"])
    assert f'"{marker.removeprefix("**")}: ' in (checkout / "kernelderby/report/gate.py").read_text()
