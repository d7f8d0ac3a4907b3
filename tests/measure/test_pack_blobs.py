"""Blobs and costs of a small set."""

import json

import pytest
from measuring import DEFINITION

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Cost

pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from kernelderby.measure.fence import landlock, seccomp  # noqa: E402
from kernelderby.measure.judge.blobs import pack_blobs  # noqa: E402
from kernelderby.measure.judge.fenced import FencedDefinitions  # noqa: E402


def test_writes_once_what_is_missing_or_stale(misbehaviours):
    catalog = Catalog.open(misbehaviours)
    path = catalog.workloads_path(DEFINITION)
    before = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(pack_blobs(catalog, check=True)) == 1 and not (misbehaviours / "blob").exists()
    assert len(pack_blobs(catalog)) == 3
    assert pack_blobs(catalog) == [] and pack_blobs(Catalog.open(misbehaviours), check=True) == []
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(line) for line in after] == [[*line, "cost"] for line in before]
    assert [{**line, "cost": None} for line in after] == [{**line, "cost": None} for line in before]
    workload = Catalog.open(misbehaviours).workloads(DEFINITION)[0]
    assert workload.cost == Cost({"float32": 256}, 1024, 512, {"nonzero": 128})
    definition = catalog.definition(DEFINITION)
    definition.source_path.write_text(definition.source_path.read_text() + "\n# edited\n")
    assert len(pack_blobs(Catalog.open(misbehaviours))) == 2


def test_a_blob_holds_what_a_run_generates(misbehaviours):
    import torch

    catalog = Catalog.open(misbehaviours)
    pack_blobs(catalog)
    workload = catalog.workloads(DEFINITION)[0]
    spec = workload.inputs["y"]
    with safetensors.safe_open(misbehaviours / spec["path"], framework="pt") as stored:
        y = stored.get_tensor(spec["tensor_key"])
    assert torch.equal(y, torch.randn(8, 16, generator=torch.Generator().manual_seed(workload.seed)))


def test_a_workload_that_does_not_know_of_a_generated_input(misbehaviours):
    path = Catalog.open(misbehaviours).workloads_path(DEFINITION)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["workload"]["inputs"]["y"] = {"type": "random"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DerbyError, match="do not agree on y"):
        pack_blobs(Catalog.open(misbehaviours))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("open({ran!r}, 'w')", "does not load: PermissionError"),
        ("import subprocess; subprocess.run(['touch', {ran!r}], check=True)", "does not load: CalledProcessError"),
        ("import os; os._exit(3)", "its code was ended (crashed"),
        ("import os; os.kill(os.getppid(), 9)", "does not load: PermissionError"),
    ],
)
def test_a_check_runs_a_definitions_code_behind_the_fences(misbehaviours, tmp_path, code, told):
    if not (landlock.version() and seccomp.has_seccomp()):
        pytest.skip("this kernel has no fences")
    pack_blobs(Catalog.open(misbehaviours))
    catalog, broken = Catalog.open(misbehaviours), []
    source = catalog.definition(DEFINITION).source_path
    fresh = source.read_text()
    with FencedDefinitions(catalog) as fenced:
        source.write_text(code.format(ran=str(tmp_path / "ran")) + "\n" + fresh)
        assert pack_blobs(catalog, True, broken.append, fenced.changes) == []
        assert len(broken) == 1 and told in broken[0] and str(source.name.split(".")[0]) in broken[0]
        source.write_text(fresh)
        assert pack_blobs(catalog, True, broken.append, fenced.changes) == []
    assert len(broken) == 1 and not (tmp_path / "ran").exists()
