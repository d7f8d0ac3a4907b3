"""One session of a program: a scratch copy of the set that it may write to, and a budget of GPU seconds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted

AUTHOR = "candidates"
_FOLDERS = ("definitions", "workloads", "solutions", "traces", "profiles", "certificates")
_NAME = re.compile(r"[a-z][a-z0-9_]{2,63}")
_FILE = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+){0,2}\.(?:py|cu|cuh|h|hpp)")
_SOURCE_BYTES = 1 << 20
_MEASURING = {"check", "bench", "gate"}


@dataclass(slots=True)
class Session:
    """scratch: the copy. seconds: of measuring and checking that are left. has_gpu: None until a command has told."""

    scratch: Path
    seconds: float
    command_seconds: float = 600.0
    taken: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, root: Path, scratch: Path, seconds: float) -> Session:
        """DerbyError where scratch is neither new, nor empty, nor the scratch of a former session."""
        mark = scratch / ".derby-scratch"
        if scratch.exists() and not mark.is_file() and (not scratch.is_dir() or any(scratch.iterdir())):
            raise DerbyError(f"--scratch: {scratch}: exists and is no scratch folder; name a new or an empty one")
        if not mark.is_file():
            scratch.mkdir(parents=True, exist_ok=True)
            for name in _FOLDERS:
                if (root / name).is_dir():
                    shutil.copytree(root / name, scratch / name, dirs_exist_ok=True)
            mark.touch()
        return cls(scratch.resolve(), seconds)

    def derby(self, *words: str) -> dict[str, Any]:
        """A verb's JSON, run on the scratch set in a process of its own. DerbyError with its line where it fails, and
        where a measuring verb has no seconds left."""
        is_measuring = words[0] in _MEASURING
        if is_measuring and self.seconds <= 0:
            raise DerbyError(f"the session's budget is spent ({counted(len(self.taken), 'command')}); end it")
        limit = min(self.command_seconds, self.seconds) if is_measuring else self.command_seconds
        start = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "kernelderby", *words, "--root", str(self.scratch), "--json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd=self.scratch,
                env={**os.environ, "XDG_CACHE_HOME": str(self.scratch / ".cache")},
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            raise DerbyError(f"derby {words[0]}: took longer than {limit:.0f} s; name fewer workloads") from None
        finally:
            if is_measuring:
                taken = time.monotonic() - start
                self.seconds -= taken
                self.taken.append((words[0], taken))
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            line = (done.stderr.strip().splitlines() or ["failed"])[-1]
            raise DerbyError(line.removeprefix("derby: ")) from None
        return found

    def write(self, name: str, operator: str, language: str, files: dict[str, str]) -> Path:
        """A candidate: made if it is new, its sources replaced by these. Nothing outside of the scratch folder."""
        from kernelderby.api.authoring import new_solution
        from kernelderby.catalog.pack import pack_one

        if not _NAME.fullmatch(name):
            raise DerbyError(f"name: {name!r:.80} must be lower case letters, digits and _, 3 to 64 of them")
        for file, text in files.items():
            if not _FILE.fullmatch(file):
                raise DerbyError(f"files: {file!r:.80} is no path of a source file such as main.py or kernels/a.cu")
            if len(text.encode()) > _SOURCE_BYTES:
                raise DerbyError(f"files: {file}: is longer than {_SOURCE_BYTES >> 20} MiB; write less")
        known = Catalog.open(self.scratch).solutions.get(name)
        if known is not None and (known.author != AUTHOR or known.definition != operator):
            raise DerbyError(f"{name}: is a solution of {known.author} for {known.definition}; take another name")
        if known is None:
            new_solution(self.scratch, name, operator, language, AUTHOR)
        solution = Catalog.open(self.scratch).solution(name)
        if solution.folder is None or not solution.folder.resolve().is_relative_to(self.scratch / "solutions" / AUTHOR):
            raise DerbyError(f"{name}: lies outside of the scratch folder")
        for file, text in files.items():
            path = solution.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.resolve().is_relative_to(solution.folder.resolve()):
                raise DerbyError(f"files: {file}: leads outside of the solution's folder")
            path.write_text(text, encoding="utf-8")
        pack_one(self.scratch, solution.folder)
        return solution.folder
