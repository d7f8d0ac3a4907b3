"""The winners as Hugging Face's `kernels` and FlashInfer's trace_apply read them."""

import importlib.util
import json
import sys
import types
import zipfile

import pytest

pytest.importorskip("torch")

import torch

from kernelderby import __version__
from kernelderby.deploy.export import export_hub, export_wheel, platform_of, refused
from kernelderby.deploy.twins import TWINS, _fastest, export_twins, twin_json
from kernelderby.deploy.winners import AllWinners, TimedShape, Winners, winners
from kernelderby.errors import DerbyError
from tests.deploy.conftest import CHOICE_LOSS, plain_winners

TEXTS = {"LICENSE": b"Apache", "NOTICE": b"KernelDerby"}
ROWS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


def some_winners(catalog, name, us):
    """us: solution -> times at hidden sizes 64 and 128, 8 tokens each."""
    solutions = tuple(catalog.solution(each) for each in us)
    axes = [axis for axis, size in catalog.definition(name).axes.items() if size is None]
    sizes = [tuple(8 if axis == "num_tokens" else width for axis in axes) for width in (64, 128)]
    shapes = tuple(TimedShape(size, {each: own[place] for each, own in us.items()}) for place, size in enumerate(sizes))
    return Winners(catalog.definition(name), solutions, shapes, {}, CHOICE_LOSS, {})


def all_winners(*operators):
    return AllWinners(("NVIDIA H200",), "cupti-graph-eager-2", ("2026-11-22", "2026-11-23"), operators, {})


def test_the_hub_gets_two_variants_without_anything_compiled(catalog, tmp_path):
    found = plain_winners(catalog)
    exported = export_hub(found, tmp_path, TEXTS)
    assert (tmp_path / "NOTICE").read_bytes() == TEXTS["NOTICE"]
    variants = sorted((tmp_path / "build").iterdir())
    assert [path.name for path in variants] == ["torch-cpu", "torch-cuda"]
    for path in variants:
        metadata = json.loads((path / "metadata.json").read_text())
        assert metadata["backend"] == {"type": path.name.removeprefix("torch-")}
        assert metadata["id"].isidentifier() and metadata["python-depends"] == []
        assert {each.suffix for each in path.rglob("*") if each.is_file()} == {".py", ".json"}
    of_cuda = {each.name for one in found.operators for each in one.solutions if each.has_cuda}
    left = {name for one in exported.found.operators for name in one.left_out}
    assert left == of_cuda and "derby_fused_add_rms_norm" in left


def test_kernels_loads_it_offline(catalog, tmp_path, monkeypatch):
    kernels = pytest.importorskip("kernels")
    export_hub(all_winners(some_winners(catalog, "rms_norm", {"rms_norm_baseline": [2.0, 2.0]})), tmp_path, {})
    monkeypatch.setenv("LOCAL_KERNELS", f"nobody/winners={tmp_path}")
    loaded = kernels.get_kernel("nobody/winners", version=1)
    weight = torch.ones(64).bfloat16()
    expected = torch.nn.functional.rms_norm(ROWS.float(), (64,), eps=1e-6)
    torch.testing.assert_close(loaded.rms_norm(ROWS, weight, 1e-6), expected.bfloat16())


def test_each_hidden_size_gets_its_fastest_and_a_librarys_stays_flashinfers(catalog, tmp_path):
    operator = some_winners(
        catalog,
        "rms_norm",
        {"derby_rms_norm": [1.0, 2.0], "flashinfer_rms_norm": [2.0, 1.0], "rms_norm_baseline": [9, 9]},
    )
    assert {size: each.name for size, each in _fastest(operator, "hidden_size").items()} == {
        64: "derby_rms_norm",
        128: "flashinfer_rms_norm",
    }
    written = export_twins(all_winners(operator), tmp_path)
    assert written.chosen == {"rmsnorm_h64": "derby_rms_norm"}
    assert written.left == {"rmsnorm_h128": "flashinfer_rms_norm"}
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == ["derby_rms_norm_h64.json", "rmsnorm_h64.json"]


def test_a_second_export_leaves_no_twin_of_the_first(catalog, tmp_path):
    """FlashInfer knows one kernel for each definition, and would load the old one too."""
    times = {"derby_rms_norm": [1.0, 1.0], "flashinfer_rms_norm": [2.0, 2.0], "rms_norm_baseline": [9, 9]}
    export_twins(all_winners(some_winners(catalog, "rms_norm", times)), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    export_twins(all_winners(some_winners(catalog, "rms_norm", times)), tmp_path)  # the same again
    with pytest.raises(DerbyError, match="rmsnorm_h128.json: is not of this export, and FlashInfer would load it too"):
        export_twins(
            all_winners(some_winners(catalog, "rms_norm", times | {"flashinfer_rms_norm": [2.0, 0.5]})), tmp_path
        )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_operators_without_a_twin_are_an_error(catalog, tmp_path):
    found = all_winners(some_winners(catalog, "l2_norm", {"l2_norm_baseline": [1.0, 1.0]}))
    with pytest.raises(DerbyError, match="only rms_norm, fused_add_rms_norm, silu_and_mul have twins in FlashInfer"):
        export_twins(found, tmp_path)


def test_the_hub_chooses_among_what_it_can_hold(catalog):
    """The CUDA kernel is faster than the Triton one everywhere; without it that one is the fastest of our own."""
    [found] = winners(catalog, [catalog.definition("fused_moe")], "h200", refused).operators
    names = {each.name for each in found.solutions}
    assert "derby_fused_moe_triton" in names and "derby_fused_moe_sm90" not in names
    assert found.left_out["derby_fused_moe_sm90"] == "it is CUDA C++"


def test_a_wheel_names_the_earlier_ones_beside_it(catalog, tmp_path):
    """`pip install dist/*.whl` would take an earlier one."""
    found = all_winners(some_winners(catalog, "rms_norm", {"rms_norm_baseline": [1.0, 1.0]}))
    older = tmp_path / "kernelderby_winners-0.1.0+h200-py3-none-any.whl"
    older.touch()
    exported = [export_wheel(found, tmp_path, lambda *_: {}, lambda _: None, {}) for _ in range(2)][-1]
    assert exported.beside == (older,) and exported.path.is_file() and exported.path != older


def test_a_wheel_of_other_rows_has_another_version_and_the_licences(catalog, tmp_path):
    """pip keeps a package of the same version; Apache's licence asks for its text and the NOTICE in every copy."""

    def export(us):
        found = all_winners(some_winners(catalog, "rms_norm", {"rms_norm_baseline": us}))
        return export_wheel(found, tmp_path, lambda *_: {}, lambda _: None, TEXTS).path

    one, again, other = export([1.0, 1.0]), export([1.0, 1.0]), export([1.0, 2.0])
    assert one == again != other
    name, version, tag = one.stem.split("-", 2)
    assert version.startswith(f"{__version__}+h200.20261123.") and tag == "py3-none-any"
    with zipfile.ZipFile(one) as archive:
        info = f"{name}-{version}.dist-info"
        assert {each: archive.read(f"{info}/licenses/{each}") for each in TEXTS} == TEXTS
        about = archive.read(f"{info}/METADATA").decode()
        assert f"Version: {version}\n" in about and "License-File: LICENSE\nLicense-File: NOTICE\n" in about


def test_the_platform_tag_is_what_the_libraries_need():
    """One that asks for a newer glibc than the tag says would be installed, and then not load."""

    def library(machine, *versions):
        return b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little") + b"\0" + b"\0".join(versions) + b"\0"

    old, new = library(62, b"GLIBC_2.2.5", b"GLIBC_2.14"), library(62, b"GLIBC_2.34", b"GLIBCXX_3.4.99")
    assert platform_of([]) == "any"
    assert platform_of([old]) == "manylinux_2_17_x86_64"
    assert platform_of([old, new]) == "manylinux_2_34_x86_64"
    assert platform_of([library(183, b"GLIBC_2.28")]) == "manylinux_2_28_aarch64"
    with pytest.raises(DerbyError, match="no ELF file"):
        platform_of([b"MZ"])


@pytest.fixture
def flashinfer():
    """Its modules without what its packages import, which takes seconds and warns."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "flashinfer"}
    for name in before:
        del sys.modules[name]
    found = importlib.util.find_spec("flashinfer")
    if found is None:
        pytest.skip("flashinfer is not installed")
    for name in ("", ".trace.templates", ".trace_apply"):
        package = types.ModuleType(f"flashinfer{name}")
        package.__path__ = [f"{found.submodule_search_locations[0]}{name.replace('.', '/')}"]
        sys.modules[package.__name__] = package
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_flashinfers_own_reader_and_adapter_call_a_twin_rightly(catalog, tmp_path, monkeypatch, flashinfer, twin):
    """With plain torch behind it, as the kernels need a GPU. The name is what FlashInfer works out of the call."""
    monkeypatch.setenv("HOME", str(tmp_path))
    from flashinfer.trace.templates.activation import silu_and_mul_trace
    from flashinfer.trace.templates.norm import fused_add_rmsnorm_trace, rmsnorm_trace
    from flashinfer.trace_apply.adapt import adapt_and_call, extract_input_dtypes, output_dests
    from flashinfer.trace_apply.config import load_config
    from flashinfer.trace_apply.loaders.python import load

    templates = {
        "rmsnorm": rmsnorm_trace,
        "fused_add_rmsnorm": fused_add_rmsnorm_trace,
        "silu_and_mul": silu_and_mul_trace,
    }
    template = templates[twin.name]
    plain = next(each for each in catalog.solutions.values() if each.name == f"{twin.of}_baseline")
    for kind, data in zip(
        ("definitions", "solutions"), twin_json(twin, 32 if twin.of == "silu_and_mul" else 64, plain), strict=True
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "one.json").write_text(json.dumps(data))
    config = load_config(tmp_path)
    [definition], [solution] = config.definitions.values(), config.solutions.values()
    assert template.definition_name({"hidden_size": 64}) == definition.name
    assert definition.const_axes() == {"hidden_size": 64}

    call = {"input": ROWS.clone(), "residual": ROWS.clone(), "weight": torch.rand(64).bfloat16()}
    call = {
        each: call[each] for each in {"silu_and_mul": ("input",), "rmsnorm": ("input", "weight")}.get(twin.name, call)
    }
    assert extract_input_dtypes(template, call) == definition.input_dtypes()
    expected = template.reference(
        **{
            "hidden_states" if each == "input" and twin.name != "silu_and_mul" else each: value.clone()
            for each, value in call.items()
        }
    )

    def called(**eps):
        given = {each: value.clone() for each, value in call.items()} | eps
        returned = adapt_and_call(
            template=template,
            fn=load(solution),
            namespace=given,
            dps=solution.spec.destination_passing_style,
            is_inplace=twin.name.startswith("fused"),
            dests=output_dests(template),
        )
        if returned is None:
            torch.testing.assert_close(given["residual"], ROWS + ROWS)
        return given["input"] if returned is None else returned

    torch.testing.assert_close(called(eps=1e-6), expected, atol=2e-2, rtol=2e-2)
    if "weight" in call:
        rows = (ROWS + ROWS if "residual" in call else ROWS).float()
        other = rows * (rows.square().mean(-1, keepdim=True) + 0.5).rsqrt() * call["weight"].float()
        torch.testing.assert_close(called(eps=0.5), other.bfloat16(), atol=2e-2, rtol=2e-2)
        with pytest.raises(RuntimeError, match="does not tell the eps of a call"):
            called()
