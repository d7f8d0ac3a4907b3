"""Fixtures shared by all tests: the checkout, a small trace set to spoil, the command."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import nvcc
import pytest

# Before torch is imported: tests run side by side, and threads that wait for each other spin (five times the CPU time).
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKOUT = Path(__file__).resolve().parent.parent


# Files that take the longest, in that order. Of processes that take a file each in turn (pytest-xdist's loadfile,
# told not to order them by the number of their tests) one would otherwise begin a long one when the other is nearly
# done.
LONGEST = (
    "solutions/test_attention_shares.py",
    "page/test_page_browser.py",
    "cli/test_readme.py",
    "test_adhoc.py",
    "solutions/test_decode_attention.py",
    "test_tutorial.py",
    "measure/test_launches.py",
    "solutions/test_attention_triton.py",
    "cheats/test_cheats.py",
    "solutions/test_competitors.py",
    "solutions/test_latent_attention.py",
    "test_api.py",
    "test_new.py",
    "test_shapes.py",
    "solutions/test_few_rows_attention.py",
    "solutions/test_triton_compact.py",
    "measure/test_gate.py",
    "measure/test_signals.py",
    "solutions/test_derby_rope_and_gating.py",
    "profile/test_mutated.py",
    "page/test_page_model.py",
    "solutions/test_gemm_sm90.py",
    "test_quick_race.py",
    "solutions/test_delta_rule_sm90.py",
    "measure/test_neighbours.py",
    "serving/test_mcp.py",
    "measure/test_measure_commands.py",
    "measure/test_start.py",
    "solutions/test_triton_compact_kernels.py",
    "definitions/test_gemm_moe.py",
    "measure/test_cluster.py",
    "solutions/test_any_head_size.py",
    "measure/test_relay.py",
    "cli/test_output.py",
    "measure/test_certify.py",
    "edges/test_bounds.py",
    "solutions/test_derby_cuda.py",
    "edges/test_places.py",
    "solutions/test_short_attention.py",
    "measure/test_workers.py",
    "measure/test_resume.py",
)


def pytest_configure(config):
    """A folder for what tests compile, the same one in all processes of a run, with a cache of its own: tests must
    not depend on the user's."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    if "KERNELDERBY_TESTS_BUILT" not in os.environ:
        folder = tempfile.mkdtemp(prefix="kernelderby-tests-")
        patch.setenv("KERNELDERBY_TESTS_BUILT", folder)
        patch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    read_checkout_once(patch)
    gc.disable()  # until all is collected: objects made until then stay


def read_checkout_once(patch: pytest.MonkeyPatch) -> None:
    """The checkout's solutions and rows are read once in a process: modules that are collected and hundreds of tests
    open it, and none changes it. What comes with a warning is read again, for the warning."""
    from kernelderby import catalog

    solutions, rows = catalog.load_solutions, catalog.Catalog._rows
    known_solutions, known_rows = {}, {}

    def load_solutions(root, *rest):
        if root.resolve() != CHECKOUT:
            return solutions(root, *rest)
        found, problems = known_solutions.pop(root, None) or solutions(root, *rest)
        if not problems:
            known_solutions[root] = found, problems
        return dict(found), problems

    def load_rows(self, path, columns, *which):
        if columns is not None or self.root.resolve() != CHECKOUT:
            return rows(self, path, columns, *which)
        if path not in known_rows:
            told, found = len(self.warnings), rows(self, path, columns, *which)
            if len(self.warnings) > told:
                return found
            known_rows[path] = found
        return list(known_rows[path])

    patch.setattr(catalog, "load_solutions", load_solutions)
    patch.setattr(catalog.Catalog, "_rows", load_rows)


def pytest_collection_modifyitems(config, items):
    """The longest files first. Tests marked gpu are skipped, with the reason, where torch sees no GPU. One in three of
    the Triton kernels is compiled for sm_100, with DERBY_TESTS_ALL=1 each."""
    if "DERBY_TESTS_ALL" not in os.environ:
        blackwell = [
            item for item in items if getattr(item, "callspec", None) and "sm_100" in item.callspec.params.values()
        ]
        left = {id(item) for place, item in enumerate(blackwell) if place % 3}
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
        items[:] = [item for item in items if id(item) not in left]
    places = {CHECKOUT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish():
    """Nine thousand items and all modules stay to the end: the garbage collector need not look through them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


OUTDATED = pytest.StashKey[int]()


def pytest_sessionfinish(session):
    """Processes that run a share of the tests tell the first one how many results were made again."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["outdated"] = len(nvcc.OUTDATED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    stash = node.config.stash
    stash[OUTDATED] = stash.get(OUTDATED, 0) + getattr(node, "workeroutput", {}).get("outdated", 0)


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(OUTDATED, 0) + len(nvcc.OUTDATED):
        terminalreporter.write_line(
            f"{count} tests compiled again what tests/data/compiled.json has of other sources: renew it "
            "(CONTRIBUTING.md, Compiled kernels)"
        )


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of this repository, itself a trace set. Tests only read it."""
    return CHECKOUT


@pytest.fixture
def small_set(tmp_path: Path) -> Path:
    """A copy of tests/data/set: one toy definition, two workloads with costs, two solutions, four traces."""
    return Path(shutil.copytree(CHECKOUT / "tests" / "data" / "set", tmp_path / "set"))


@pytest.fixture(autouse=True)
def no_set_of_the_user(monkeypatch):
    """Tests ignore the set that the user's shell names."""
    monkeypatch.delenv("DERBY_ROOT", raising=False)
    monkeypatch.delenv("FIB_DATASET_PATH", raising=False)


@pytest.fixture(scope="session")
def machine_of():
    """machine_of(root, device): what find_machine says, asked once: a worker takes two seconds to say the same."""
    from kernelderby.measure.machine.probe import find_machine

    @cache
    def known(device):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            return find_machine(CHECKOUT, device)

    return lambda root, device, glance=True: known(device)


@pytest.fixture
def asked_once(monkeypatch, machine_of):
    """`derby doctor` asks what machine this is once in all tests that have this fixture."""
    monkeypatch.setattr("kernelderby.measure.machine.doctor.find_machine", machine_of)


@pytest.fixture
def derby(monkeypatch, capsys):
    """derby(*arguments, columns=240) -> (exit code, stdout, stderr) of the command, in this process."""
    from kernelderby import cli

    def run(*arguments: object, columns: int = 240) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.argv", ["derby", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    return run
