"""A sealed session (`derby bench --sealed`): first the commitment, then every row and note in order, last the secret.

traces/<gpu>/sealed/<session>.seal has one JSON object a line. The first line commits to the secret (its hash) and names
the code that takes part. Each line holds the hash of the one before, so a later change, removal or addition would
change all following lines. The last line has the secret, from which everybody draws the same inputs. verify.py reads
the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelderby.catalog import Solution
from kernelderby.errors import DerbyError
from kernelderby.store.files import reason

FOLDER, SUFFIX, NAMESPACE = "sealed", ".seal", "kernelderby"
_SIGN_SECONDS = 300  # it may ask for a passphrase, or for the touch of a key


class Seal:
    def __init__(self, root: Path, gpu_id: str, session: str) -> None:
        self._root, self._session = root, session
        self.path = root / "traces" / gpu_id / FOLDER / f"{session.replace(':', '')}{SUFFIX}"
        self._chain, self._rows = "", 0

    def begin(self, secret: str, solutions: Iterable[Solution], about: dict[str, Any]) -> str:
        """Call it before any measurement. Gives the commitment, which should be published now. DerbyError if the file
        cannot be written."""
        promised = commitment(self._session, secret)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DerbyError(f"{self.path.parent}: cannot be made ({reason(error)}); mend its permissions") from None
        code = {solution.name: solution.hash for solution in solutions}
        self._write("begin", session=self._session, commitment=promised, solutions=code, **about)
        return promised

    def row(self, path: Path, line: str) -> None:
        self._rows += 1
        self._write("row", file=str(path.relative_to(self._root)), sha256=sha256(line.encode()))

    def note(self, text: str) -> None:
        self._write("note", text=text)

    def end(self, secret: str) -> None:
        self._write("end", rows=self._rows, secret=secret)

    def _write(self, kind: str, **fields: Any) -> None:
        entry = {"kind": kind, **fields, "previous": self._chain}
        self._chain = entry_hash(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**entry, "hash": self._chain}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def commitment(session: str, secret: str) -> str:
    """A hash that reveals nothing about a secret of 128 random bits, and fits no other secret."""
    return sha256(f"kernelderby-seal-1\n{session}\n{secret}".encode())


def entry_hash(entry: dict[str, Any]) -> str:
    """The hash of an entry, which includes the hash of the one before."""
    return sha256(json.dumps(entry, sort_keys=True, ensure_ascii=True).encode())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sign(path: Path, key: Path) -> Path:
    """Signs a file with a secret key of minisign, or otherwise of ssh-keygen. Returns the signature file beside it."""
    is_of_minisign, made = signature_of(path, key)
    if is_of_minisign:
        problem = run_signature_tool(["minisign", "-S", "-s", str(key), "-m", str(path), "-x", str(made)])
    else:
        made.unlink(missing_ok=True)
        problem = run_signature_tool(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)])
    if problem or not made.is_file():
        raise DerbyError(f"--sign {key}: {path.name} is not signed: {problem or 'no signature was made'}; sign it anew")
    return made


def signature_of(path: Path, key: Path) -> tuple[bool, Path]:
    """Whether a key is minisign's, and the name of the signature file."""
    try:
        with key.open("rb") as file:
            is_of_minisign = file.read(20).startswith(b"untrusted comment:")
        return is_of_minisign, path.with_name(path.name + (".minisig" if is_of_minisign else ".sig"))
    except OSError as error:
        raise DerbyError(f"{key}: cannot be read ({reason(error)}); name a key file") from None


def run_signature_tool(words: list[str], given: bytes | None = None) -> str:
    """Why the signature tool failed; empty if it succeeded."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=_SIGN_SECONDS)
    except FileNotFoundError:
        return f"{words[0]} is not installed"
    except subprocess.TimeoutExpired:
        return f"{words[0]} took over {_SIGN_SECONDS} s"
    said = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said[-1][:200] if said else f"{words[0]} failed")
