"""A program that writes kernels, played without a model: python benchmarks/candidates_loop.py --candidates 10

It starts `derby mcp` as a client does, asks for the task of rms_norm, writes candidates (right ones, and such as a
model writes on the way), checks each, and prints what it was told. No GPU is needed. Exit code 1 where a verdict is
not the expected one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mcp import ClientSession, StdioServerParameters, stdio_client

CHECKOUT = Path(__file__).resolve().parent.parent
OPERATOR = "rms_norm"
_RIGHT = "x = hidden_states.float(); y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()"
# What run() computes before `output.copy_(y)`, and the status that it must get; the lines after it stay the same.
BODIES = (
    (_RIGHT, "passed"),
    (_RIGHT.replace(" + eps", ""), "wrong_values"),
    (_RIGHT.replace(".mean(-1", ".sum(-1"), "wrong_values"),
    ("x = hidden_states.float(); y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.float(), eps)", "passed"),
    (_RIGHT.replace(" * weight.float()", ""), "wrong_values"),
    ("y = undefined_name", "raised"),
    (_RIGHT + "; hidden_states.zero_()", "input_changed"),
    (_RIGHT + "; y[..., -1:] = float('nan')", "not_a_number"),
    ("return", "unwritten"),
    (_RIGHT.replace("hidden_states.float()", "hidden_states.double()"), "passed"),
)


def source(body: str) -> str:
    return f"import torch\n\n\ndef run(hidden_states, weight, eps, output):\n    {body}\n    output.copy_(y)\n"


async def play(
    root: Path, scratch: Path, bodies: Sequence[tuple[str, str]], seconds: int = 600
) -> list[tuple[str, str, set[str]]]:
    """Candidate, expected status, and the statuses that its cases got."""
    words = ["-m", "kernelderby", "mcp", "--root", str(root), "--scratch", str(scratch), "--gpu-seconds", str(seconds)]
    found = []
    async with stdio_client(StdioServerParameters(command=sys.executable, args=words, env=_environment())) as pipes:
        async with ClientSession(*pipes) as session:
            await session.initialize()
            task = (await session.call_tool("prompt", {"operator": OPERATOR})).content[0].text
            assert task.startswith(f"# Task: the fastest `{OPERATOR}`")
            for place, (body, expected) in enumerate(bodies):
                name = f"candidate_{place}"
                files = {"main.py": source(body)}
                words = {"name": name, "operator": OPERATOR, "language": "python", "files": files}
                made = await session.call_tool("new", words)
                assert not made.is_error, made.content[0].text
                checked = (await session.call_tool("check", {"solution": name})).structured_content
                found.append((name, expected, {each["status"] for each in checked["cases"]}))
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def is_as_expected(expected: str, statuses: set[str]) -> bool:
    return statuses == {"passed"} if expected == "passed" else any(each.startswith(expected) for each in statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=len(BODIES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(play(CHECKOUT, Path(folder, "scratch"), BODIES[: arguments.candidates]))
    for name, expected, statuses in found:
        told = "as expected" if is_as_expected(expected, statuses) else f"expected {expected}"
        print(f"{name}: {', '.join(sorted(statuses))}: {told}")
    return 0 if all(is_as_expected(expected, statuses) for _, expected, statuses in found) else 1


if __name__ == "__main__":
    sys.exit(main())
