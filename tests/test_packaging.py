"""The packages: the same bytes each time, no link; and the bounds of the dependencies, written once."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest


@pytest.fixture
def hook(checkout, monkeypatch):
    """hatch_build.py, without hatchling, which only building needs."""
    name = "hatchling.builders.hooks.plugin.interface"
    for at in range(1, name.count(".") + 2):
        monkeypatch.setitem(sys.modules, ".".join(name.split(".")[:at]), ModuleType(name))
    sys.modules[name].BuildHookInterface = object
    spec = importlib.util.spec_from_file_location("hatch_build", checkout / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_link_is_packed(hook, tmp_path):
    for part in hook.PARTS[1:]:
        (tmp_path / part).mkdir()
    (tmp_path / "definitions/a.json").write_text("{}")
    made = hook.NoLinks()
    made.root = str(tmp_path)
    made.initialize("standard", {})
    (tmp_path / "solutions/secret.py").symlink_to("/etc/hostname")
    (tmp_path / "solutions/folder").symlink_to("/etc")
    (tmp_path / "kernelderby").symlink_to("/etc")
    assert hook.links(tmp_path) == ["kernelderby", "solutions/folder", "solutions/secret.py"]
    with pytest.raises(RuntimeError, match="kernelderby and 2 more: is a symlink"):
        made.initialize("standard", {})


def test_what_is_packed_is_what_hatch_packs(hook, checkout):
    built = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = built["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} == set(hook.PARTS) and "custom" in built["hooks"]
    assert hook.links(checkout) == []


def test_two_packs_are_the_same_bytes():
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save
    from kernelderby.measure.judge.blobs import with_sorted_metadata

    content = {"b": torch.arange(3), "a": torch.ones(2, 2), "empty": torch.ones(0)}
    names = {"seed": "7", "definition_sha256": "é" * 9, "a": "1", "z": "2"}
    made = {with_sorted_metadata(save(content, metadata=names)) for _ in range(24)}
    [data] = made
    size = int.from_bytes(data[:8], "little")
    assert list(json.loads(data[8 : 8 + size])["__metadata__"]) == sorted(names) and size % 8 == 0
    read = pytest.importorskip("safetensors.torch").load(data)
    assert read["a"].tolist() == [[1, 1], [1, 1]] and read["b"].tolist() == [0, 1, 2]


def test_every_dependency_has_a_lowest_version_and_a_pin(checkout):
    """scripts/minimum.sh installs the lowest; `make` the pins."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (checkout / "constraints.txt").read_text(), re.MULTILINE))
    known = {name.lower().replace("_", "-") for name in pins}
    for extra in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in extra:
            if requirement.startswith("kernelderby["):
                continue
            name = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=[\d.]+", requirement)[1]
            assert name.lower().replace("_", "-") in known, f"{name} has no pin in constraints.txt"


def locked(checkout, *names):
    """Name -> (version, number of hashes) of entries of locks/."""
    text = "".join((checkout / f"locks/{name}.txt").read_text() for name in names)
    found = {}
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", entry).groups()
        found[name] = version.removesuffix("+cpu"), len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry))
    return found


@pytest.mark.parametrize(("lock", "extras"), [("cpu", ("measure", "dev")), ("gpu", ("measure", "dev", "gpu"))])
def test_make_installs_the_pins_by_their_hashes(checkout, lock, extras):
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert (checkout / f"locks/{lock}.txt").read_text().rstrip().endswith("-r common.txt")
    found = locked(checkout, lock, "common", "pip")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (checkout / "constraints.txt").read_text(), re.MULTILINE))
    for name, version in pins.items():
        assert found.get(name.lower().replace("_", "-"), (version,))[0] == version, f"{name}: python scripts/lock.py"
    for requirement in sum((project["optional-dependencies"][extra] for extra in extras), project["dependencies"]):
        name = re.match(r"[\w.-]+", requirement)[0].lower()
        assert name in found, f"{requirement}: python scripts/lock.py, with uv on the PATH"
    assert len(found) > 90 and all(hashes for _, hashes in found.values())


def test_what_make_asks_of_pip(checkout):
    def setup(*words):
        done = subprocess.run(
            ["make", "-Bn", "setup", "VENV=/nowhere", *words], cwd=checkout, capture_output=True, text=True
        )
        return [line for line in done.stdout.splitlines() if " pip install " in line]

    renewed, locks, own = setup()
    assert renewed.endswith("--no-deps --require-hashes -r locks/pip.txt") and "--no-deps --require-hashes" in locks
    assert "--no-deps --no-build-isolation -e ." in own
    for words in (["CONSTRAINTS="], ["CONSTRAINTS=mine.txt"], ["EXTRAS=measure"]):
        renewed, own = setup(*words)
        assert "locks/" not in renewed + own and own.endswith("]'")
        assert ("-c mine.txt" in own) == ("CONSTRAINTS=mine.txt" in words)
