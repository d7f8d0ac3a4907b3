"""Runs tests marked `interpreted` in a second process (interpreted.py says why), and fixtures of the solutions."""

import json
import os
import sys
import types
from pathlib import Path

import fakes
import interpreted
import pytest
import torch
from moe_cases import solution

OUTCOMES, PROCESS = pytest.StashKey(), pytest.StashKey()


def pytest_configure(config):
    config.addinivalue_line("markers", "interpreted: runs in Triton's interpreter, in a second process")
    if interpreted.INTERPRETING:
        from kernelderby.measure.worker.interpreter import as_on_a_gpu

        as_on_a_gpu()


def pytest_collection_modifyitems(items):
    if not interpreted.INTERPRETING:
        for item in interpreted_items(items):
            item.add_marker(pytest.mark.timeout(1200))  # the first of them waits for all


def interpreted_items(items):
    return [item for item in items if item.get_closest_marker("interpreted")]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """In the first process: the outcome that the test had in the second."""
    if interpreted.INTERPRETING or not pyfuncitem.get_closest_marker("interpreted"):
        return None
    session, path = pyfuncitem.session, pyfuncitem.path
    known = session.stash.setdefault(OUTCOMES, {})
    if path not in known:  # by file: of two pytest-xdist workers each has all items and runs some files
        if PROCESS not in session.stash:
            session.stash[PROCESS] = interpreted.Interpreting(session.config.rootpath)
        node_ids = [item.nodeid for item in interpreted_items(session.items) if item.path == path]
        known[path] = session.stash[PROCESS].run(node_ids)
    outcomes = known[path]
    outcome, text = outcomes.get(pyfuncitem.nodeid, outcomes[""])
    if outcome == "skipped":
        pytest.skip(text)
    if outcome != "passed":
        pytest.fail(text, pytrace=False)
    return True


_reports = {}


def pytest_runtest_logreport(report):
    """In the second process: a test's outcome is the worst of its setup, call and teardown."""
    known = _reports.get(report.nodeid)
    if known is None or known[0] == "passed":
        _reports[report.nodeid] = [report.outcome, report.longreprtext]


def pytest_sessionfinish(session):
    if PROCESS in session.stash:
        session.stash[PROCESS].end()
    if path := os.environ.get(interpreted.REPORT):
        Path(path).write_text(json.dumps(_reports))


@pytest.fixture
def poisoned(monkeypatch):
    """poisoned(name) -> the solution's module. Its buffers come as NaN, not as whatever the memory holds, and only the
    zeros that it asks for are zeros; it starts with no buffers and leaves none."""
    used = []

    def forget(module):
        if hasattr(module, "buffers"):
            module.buffers.cache_clear()
        if hasattr(module, "workspace"):
            module.workspace.kept.clear()

    def empty(*shape, **options):
        tensor = torch.empty(*shape, **options)
        if tensor.numel():
            tensor.view(torch.uint8).fill_(255)  # NaN in fp8, bf16 and float32, and -1 in an integer
        return tensor

    def poison(name):
        module = solution(name)
        names = {key: getattr(torch, key) for key in dir(torch) if not key.startswith("__")}
        for user in (module, getattr(module, "workspaces", None)):
            if user is not None:
                monkeypatch.setattr(user, "torch", types.SimpleNamespace(**{**names, "empty": empty}))
        forget(module)
        used.append(module)
        return module

    yield poison
    for module in used:
        forget(module)


@pytest.fixture
def ready(monkeypatch, poisoned):
    """ready(name) -> the module of a solution that can run here: fakes for its library, poisoned buffers."""

    def prepare(name):
        for module, make in fakes.MODULES.items():
            monkeypatch.setitem(sys.modules, module, make())
        return poisoned(name)

    return prepare
