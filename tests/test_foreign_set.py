"""A set in the layout of flashinfer-bench's public ones: definitions without a .py, packed solutions without
[requires], rows of its own evaluator. tests/data/foreign_set: three operators of ours written down that way."""

from __future__ import annotations

import json
import shutil

import pytest

from kernelderby.catalog import Catalog

ROOT = "tests/data/foreign_set"


@pytest.fixture
def foreign(checkout, monkeypatch):
    monkeypatch.chdir(checkout / ROOT)
    return checkout / ROOT


@pytest.mark.parametrize("verb", [("list",), ("show", "rms_norm_h64"), ("rank",), ("roofline", "--gpu", "b200")])
def test_a_verb_works_and_complains_of_nothing(foreign, derby, verb):
    code, out, err = derby(*verb)
    assert code == 0 and err == "" and "rms_norm_h64" in out


def test_no_share_rests_on_bytes_alone(foreign, derby):
    assert all(each.cost is None for each in Catalog.open(foreign).workloads("rms_norm_h64"))
    out = " ".join(derby("roofline", "--gpu", "b200")[1].split())
    assert "S unknown, since nobody counted the work: gather_rows_d8, gemm_n16_k32, rms_norm_h64" in out
    assert "n/a" in out and " I " not in out.split("C flop")[0]


def test_pack_counts_from_the_reference(foreign, tmp_path, derby):
    pytest.importorskip("torch")
    root = shutil.copytree(foreign, tmp_path / "set")
    code, out, err = derby("pack", "--root", root)
    assert code == 0, out + err
    costs = {each.axes["batch_size"]: each.cost for each in Catalog.open(root).workloads("rms_norm_h64")}
    assert costs[3].counted and costs[3].flops
    assert (costs[3].bytes_read, costs[3].bytes_written) == ((3 + 1) * 64 * 2, 3 * 64 * 2)
    for gemm in Catalog.open(root).workloads("gemm_n16_k32"):
        assert gemm.cost.flops == {"float16": 2 * gemm.axes["M"] * 16 * 32}
    (gather,) = Catalog.open(root).workloads("gather_rows_d8")
    assert gather.cost is None and "the file of index is missing" in out  # never guessed
    said = derby("roofline", "--gpu", "b200", "--root", root)[1]
    assert "counted from the reference" in said and "unknown, since nobody counted the work: gather_rows_d8;" in said
    assert "everything is fresh" in derby("pack", "--check", "--root", root)[1]


def test_a_set_with_counted_costs_is_not_said_to_have_none(checkout, derby, monkeypatch):
    monkeypatch.chdir(checkout)
    assert "nobody counted" not in derby("roofline", "--gpu", "b200")[1]


def test_a_row_of_flashinfer_bench_is_ranked(foreign, derby):
    report = json.loads(derby("rank", "--json")[1])
    assert "someone_rms_norm" in json.dumps(report)


def test_a_cpu_checks_at_the_smallest_workload(foreign, tmp_path, derby):
    pytest.importorskip("torch")
    root = shutil.copytree(foreign, tmp_path / "set")
    code, out, _ = derby("check", "--root", root)
    assert code == 1 and "batch_size=3" in out and "batch_size=128" not in out
    assert "1 passed, 1 failed" in out and "someone_wrong_eps: wrong_values" not in out.split("FAILED")[0]


@pytest.mark.parametrize(("blob", "why"), [(None, "is missing; fetch"), (b"no tensors", "index: ")])
def test_blobs_that_were_not_fetched_leave_the_other_operators(foreign, tmp_path, derby, blob, why):
    pytest.importorskip("torch")
    root = shutil.copytree(foreign, tmp_path / "set")
    definition = json.loads((root / "definitions/gather/gather_rows_d8.json").read_text())
    solution = json.loads((root / "solutions/someone/rmsnorm/rms_norm_h64/someone_rms_norm.json").read_text())
    solution |= {"name": "someone_gather", "definition": "gather_rows_d8"}
    solution["sources"] = [{"path": solution["spec"]["entry_point"].split("::")[0], "content": definition["reference"]}]
    folder = root / "solutions/someone/gather/gather_rows_d8"
    folder.mkdir(parents=True)
    (folder / "someone_gather.json").write_text(json.dumps(solution))
    if blob:
        place = root / "blob/workloads/gather/gather_rows_d8/a.safetensors"
        place.parent.mkdir(parents=True)
        place.write_bytes(blob)
    code, out, err = derby("check", "--root", root)
    assert code == 1 and "1 passed, 1 failed" in out
    assert why in out + err and "a.safetensors" in (out + err).replace("\n", "")
