"""PTX stands once: inline assembly is in common/ptx.cuh, tma.cuh and wgmma.cuh, each instruction in one wrapper."""

import re
from collections import Counter
from pathlib import Path

import pytest

OURS = Path(__file__).resolve().parents[2] / "solutions" / "kernelderby"
HEADERS = ("common/ptx.cuh", "common/tma.cuh", "common/wgmma.cuh")
# File -> why it has assembly of its own.
ALLOWED = {
    "common/decode_mma.cuh": "a product of float4: by mma_m16n8k16 4 of 46 kernels of paged decode differ",
    "common/any_gpu.cuh": "kernels compiled for every GPU, and by g++ for the CPU, which leaves the instruction out",
    "common/dense_join.cuh": "store_cluster of four floats: moves to ptx.cuh when all that includes it is built again",
    "common/dense_parts.cuh": "no instruction: keeps the order of reads",
}
ASM = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")


def code(path):
    """Without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def files():
    return sorted(path for path in OURS.rglob("*") if path.suffix in (".cu", ".cuh"))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(OURS).as_posix())
def test_assembly_stands_in_the_headers(path):
    name = path.relative_to(OURS).as_posix()
    assert name in (*HEADERS, *ALLOWED) or not ASM.search(code(path)), "use common/ptx.cuh, or add the wrapper there"


def test_each_exception_is_still_one():
    assert [name for name in ALLOWED if not (OURS / name).is_file() or not ASM.search(code(OURS / name))] == []


def test_each_instruction_is_wrapped_once():
    """The texts of all asm statements; those without an instruction (keep, pin) do not count."""
    texts = Counter()
    for name in HEADERS:
        for found in re.finditer(r'\basm\b(?:\s+volatile)?\s*\(((?:\s*"(?:[^"\\]|\\.)*")+)', code(OURS / name)):
            text = re.sub(r'"\s*"|\s+', " ", found[1]).strip()
            texts[text] += text != ""
    assert texts and [text for text, count in texts.items() if count > 1] == []


def test_each_kernel_says_its_constraints():
    """Shapes, alignment, architecture and what the host must see to, in the comment at the head of its file."""
    heads = {path: path.read_text().partition("\n#")[0] for path in files() if "__global__" in code(path)}
    silent = [path.relative_to(OURS).as_posix() for path, head in heads.items() if "// Constraints: " not in head]
    assert len(heads) > 30 and silent == []


def test_named_barriers_have_names():
    """An enum or a constant says what the threads of a hardware barrier wait for."""
    numbered = re.compile(r"\bnamed_barrier_(?:sync|arrive)\(\s*\d")
    assert [path.name for path in files() if numbered.search(code(path))] == []


def test_the_driver_is_asked_for_its_function_once():
    """launch.cuh finds cuTensorMapEncodeTiled, for all libraries."""
    asking = "cudaGetDriverEntryPointByVersion("
    assert [path.name for path in files() if asking in code(path)] == ["launch.cuh"]
