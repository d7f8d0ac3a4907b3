"""One session of a program: a scratch copy of the set that it may write to, and a budget of GPU seconds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakSet

from kernelderby.api.fenced_verbs import verb_json
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted

AUTHOR = "candidates"
_FOLDERS = ("definitions", "workloads", "solutions", "traces", "profiles", "certificates")
_NAME = re.compile(r"[a-z][a-z0-9_]{2,63}")
_FILE = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+){0,2}\.(?:py|cu|cuh|h|hpp)")
_SOURCE_BYTES = 1 << 20
_MEASURING = {"check", "bench", "gate"}


class Request:
    """A client's request. What it has started ends when the client withdraws it, or when the server ends."""

    _open: ClassVar[WeakSet[Request]] = WeakSet()

    def __init__(self) -> None:
        self._open.add(self)
        self._process: subprocess.Popen[str] | None = None
        self._is_withdrawn = False

    def begin(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.expect_wanted()

    def withdraw(self) -> None:
        self._is_withdrawn = True
        if self._process is not None:
            self._process.terminate()

    @classmethod
    def withdraw_all(cls) -> None:
        for each in list(cls._open):
            each.withdraw()

    def expect_wanted(self) -> None:
        if self._is_withdrawn:
            self.withdraw()
            raise DerbyError("the client has withdrawn this call")


REQUEST: ContextVar[Request] = ContextVar("request")


@dataclass(slots=True)
class Session:
    """scratch: the copy. seconds: of measuring and checking that are left."""

    scratch: Path
    seconds: float
    command_seconds: float = 600.0
    taken: list[tuple[str, float]] = field(default_factory=list)
    _one_at_a_time: Lock = field(default_factory=Lock)

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

    def derby(self, verb: str, *names: str, options: Sequence[str] = ()) -> dict[str, Any]:
        """A verb's JSON, run on the scratch set in a process of its own. names: a program's words, never options.
        DerbyError with its line where it fails, and where a measuring verb has no seconds left; these take turns."""
        if verb not in _MEASURING:
            return self._answer(verb, names, options, self.command_seconds)
        with self._one_at_a_time:
            if self.seconds <= 0:
                raise DerbyError(f"the session's budget is spent ({counted(len(self.taken), 'command')}); end it")
            start = time.monotonic()
            try:
                return self._answer(verb, names, options, min(self.command_seconds, self.seconds))
            finally:
                taken = time.monotonic() - start
                self.seconds -= taken
                self.taken.append((verb, taken))

    def _answer(self, verb: str, names: Sequence[str], options: Sequence[str], limit: float) -> dict[str, Any]:
        request = REQUEST.get(Request())
        request.expect_wanted()
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.scratch / ".cache")}
        process = {"cwd": self.scratch, "env": environment}
        try:
            words = [verb, *options]
            return verb_json(words, self.scratch, names, timeout=limit, begun=request.begin, **process)[0]
        except subprocess.TimeoutExpired:
            raise DerbyError(f"derby {verb}: took longer than {limit:.0f} s; name fewer workloads") from None

    def write(self, name: str, operator: str, language: str, files: dict[str, str]) -> Path:
        """A candidate: made if it is new, its sources replaced by these. Nothing outside of the scratch folder."""
        from kernelderby.api.authoring import new_solution
        from kernelderby.authoring.entry import expect_writing
        from kernelderby.catalog.pack import pack_one

        if not _NAME.fullmatch(name):
            raise DerbyError(f"name: {name!r:.80} must be lower case letters, digits and _, 3 to 64 of them")
        for file, text in files.items():
            if not _FILE.fullmatch(file):
                raise DerbyError(f"files: {file!r:.80} is no path of a source file such as main.py or kernels/a.cu")
            if len(text.encode()) > _SOURCE_BYTES:
                raise DerbyError(f"files: {file}: is longer than {_SOURCE_BYTES >> 20} MiB; write less")
        catalog = Catalog.open(self.scratch)
        known = catalog.solutions.get(name)
        if known is not None and (known.author != AUTHOR or known.definition != operator):
            raise DerbyError(f"{name}: is a solution of {known.author} for {known.definition}; take another name")
        if "main.py" in files:
            expect_writing("main.py", files["main.py"], catalog.definition(operator))
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
