"""Text from a worker, marked as such everywhere: rows must not contain it, screens may.

A solution could print anything, such as a file of the user's home, and rows are public. At the pipe its words are put
between two characters that no text from there can contain (replies.text()); the judge's texts around them keep both
characters. A row gets kept(): one of a few names instead, and a hash that finds the words in a file of this machine.
"""

from __future__ import annotations

import builtins
import hashlib
import re
import secrets
from collections.abc import Callable

_BEGIN, _END = "\x02", "\x03"
_QUOTED = re.compile(f"{_BEGIN}([^{_END}]*)(?:{_END}|$)")
_KEY = secrets.token_bytes(16)  # of this process
_NAMES = frozenset(
    {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)}
    | {"AcceleratorError", "BuildError", "CalledProcessError", "CompilationError", "CompileTimeAssertionFailure"}
    | {"InductorError", "InterpreterError", "JSONDecodeError", "OutOfMemoryError", "OutOfResources", "PTXASError"}
    | {"TimeoutExpired", "TimingFailed", "TorchRuntimeError", "UnsupportedLanguageConstruct"}
)
# The words of the driver, torch and Triton for the most frequent failures of solutions.
_PHRASES = (
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert triggered",
    "invalid configuration argument",
    "invalid device function",
    "invalid argument",
    "no kernel image is available for execution on the device",
    "too many resources requested for launch",
    "operation not permitted when stream is capturing",
    "operation failed due to a previous error during capture",
    "operation would make the legacy stream depend on a capturing blocking stream",
    "dependency created on uncaptured work in another stream",
    "during CUDA graph capture",
    "out of resource: shared memory",
    "out of memory",
    "uncorrectable ECC error encountered",
    "a CPU has no CUDA graphs",
    "No space left on device",
    "Permission denied",
    "Operation not permitted",
)


def quoted(words: str) -> str:
    """Words of a worker, from replies.text() or cleaned as there."""
    return f"{_BEGIN}{words}{_END}" if words else ""


def shown(message: str) -> str:
    """The whole text, for a screen or a log of this machine."""
    return message.replace(_BEGIN, "").replace(_END, "")


def kept(message: str, keep: Callable[[str], None]) -> str:
    """The text for a row: the judge's words, and the class and hash of each quotation. keep: gets the quoted words."""

    def replaced(found: re.Match[str]) -> str:
        words = found[1]
        if not words or words in _PHRASES:  # without other text
            return words
        keep(words)
        return f"{class_of(words)} (log {hash_of(words)})".lstrip()

    return _QUOTED.sub(replaced, message)


def hash_of(words: str) -> str:
    """By a key that no worker knows: otherwise it would try words until their hash spells what it wants to say."""
    return hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=6, key=_KEY).hexdigest()


def class_of(words: str) -> str:
    """The name of an exception and a phrase, if these are known; otherwise empty or "another exception"."""
    found = re.match(r"\w+(?=:|$)", words)
    name = "" if found is None else found[0] if found[0] in _NAMES else "another exception"
    phrase = next((each for each in _PHRASES if each in words), "")
    return ": ".join(filter(None, (name, phrase)))
