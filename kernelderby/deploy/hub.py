"""The winners as a repository that Hugging Face's `kernels` loads: Python, Triton and tables, nothing compiled.

    <folder>/build/torch-cuda/{metadata.json, __init__.py, ...}    and torch-cpu, where plain torch runs

CUDA solutions stay out of it, since their libraries are of one architecture, which takes kernel-builder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kernelderby import __version__
from kernelderby.deploy.contents import NAME, contents
from kernelderby.deploy.export import Exported
from kernelderby.deploy.libraries import has_libraries
from kernelderby.deploy.winners import AllWinners, without
from kernelderby.store.files import write_whole

BACKENDS = ("cuda", "cpu")


def export_hub(found: AllWinners, folder: Path) -> Exported:
    """Writes the folder; files of an earlier export there are replaced, others stay."""
    solutions = [each for operator in found.operators for each in operator.solutions]
    kept = without(found, {each.name: "it is CUDA C++" for each in solutions if has_libraries(each)})
    files = contents(kept)
    digest = hashlib.sha256(b"\0".join(files[path] for path in sorted(files))).hexdigest()[:8]
    for backend in BACKENDS:
        metadata = {
            "name": NAME.replace("_", "-"),
            "id": f"_{NAME}_{backend}_{digest}",  # the module's name, and so the operators' namespace
            "version": int(__version__.partition(".")[0]),
            "license": "apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        every = {**files, "metadata.json": (json.dumps(metadata, indent=2) + "\n").encode()}
        for path, data in every.items():
            write_whole(folder / "build" / f"torch-{backend}" / path, data)
    return Exported(folder, sum(map(len, files.values())), kept, 0, {})
