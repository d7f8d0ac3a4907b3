"""Why it is wrong: the first elements, where they lie, whether the draw decides, the tensors, the user's own line."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from kernelderby.catalog import Catalog  # noqa: E402
from kernelderby.measure.judge.mismatch import look_closer  # noqa: E402


class Reference:
    @staticmethod
    def run(*inputs):
        return inputs[0] * 2


@pytest.fixture
def own(tmp_path, monkeypatch, derby):
    (tmp_path / "definitions").mkdir()
    monkeypatch.chdir(tmp_path)
    derby("new", "operator", "twice", "x:f32[T,D]", "--run", "x * 2", "--size", "T=2", "--size", "D=300")
    return tmp_path


def test_places_are_told(own):
    definition = Catalog.open(own).definition("twice")
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))

    def told(output):
        return "\n".join(look_closer(definition, Reference, {"x": x}, {"output": output}))

    tail = x * 2
    tail[:, 256:] += 1
    assert "220 of 1500 elements differ" in told(tail) and "columns: 256 to 299 of 300, from the tile of 256" in told(
        tail
    )
    assert "rows: all 5" in told(tail)
    place = f"output[0, 256]: got {float(tail[0, 256]):.6g}, expected {float(2 * x[0, 256]):.6g}"
    assert place in told(tail)
    row = x * 2
    row[3] = 0
    assert "rows: 3 of 5 alone" in told(row)
    assert "every element is 2 times" in told(x * 4)
    assert "every element of the output is 0" in told(x * 0)
    assert told(x * 2) == ""
    tile = x * 2
    tile[3, 128:256] += 1
    tile[3, 128] = 2 * x[3, 128]  # right by chance
    tile[3, 130] = 2 * x[3, 130]
    assert "columns: 126 of the 127 from 129 to 255 of 300: tiles 2 to 3 of 5, each of 64" in told(tile)


def test_outputs_that_the_definition_cannot_read_end_no_run(own):
    definition, x = Catalog.open(own).definition("twice"), torch.ones(2, 300)

    class Sorted(Reference):
        @staticmethod
        def canonical_outputs(outputs, inputs):
            return {"output": inputs["x"].flatten()[outputs["output"].long()]}

    assert look_closer(definition, Sorted, {"x": x}, {"output": x * 1e6}) == ()


def test_a_failing_check_says_why_and_dumps(own, derby):
    (own / "wrong.py").write_text("def run(x):\n    y = x * 2\n    y[:, -1:] = 7\n    return y\n")
    code, out, _ = derby("check", "wrong.py", "--for", "twice", "--shape", "T=3,D=9", "--dump", "why.safetensors")
    said = " ".join(out.replace("\n- ", " ").split())
    assert code == 1 and "output[0, 8]: got 7, expected" in said and "columns: 8 of 9 alone" in said
    assert "other inputs are wrong too" in said
    assert "derby check wrong.py --for twice --shape T=3,D=9 --secret" in said
    from safetensors.torch import load_file

    found = load_file(own / "why.safetensors")
    assert torch.equal(found["expected.output"], found["input.x"] * 2) and bool((found["got.output"][:, -1] == 7).all())


def test_a_dump_that_cannot_be_written_is_one_line(own, derby):
    (own / "wrong.py").write_text("def run(x):\n    return x * 3\n")
    words = ("check", "wrong.py", "--for", "twice", "--shape", "T=3,D=9", "--dump")
    for place in ("nowhere/why.safetensors", "definitions"):
        code, _, err = derby(*words, place)
        assert code == 1 and err.count("\n") == 1 and err.startswith(f"derby: --dump: {place}: ")


def test_tritons_error_is_at_the_users_line(own, derby):
    pytest.importorskip("triton")
    (own / "typo.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(x, y):\n    tl.store(y, tl.lod(x))\n"
        "\n\ndef run(x, y):\n    kernel[(1,)](x, y)\n"
    )
    out = derby("check", "typo.py", "--for", "twice", "--shape", "T=1,D=1", "--json")[1]
    (result,) = json.loads(out)["results"]
    assert result["message"].endswith("(typo.py:7 in kernel)")  # not Triton's own lines
