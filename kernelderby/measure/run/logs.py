"""What solutions have said, on this machine: rows hold its class and hash."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kernelderby.measure.wire.quoted import hash_of, kept
from kernelderby.measure.wire.sources import cache_folder


class Logs:
    """folder: a file for each hash that a row of the session names. Workers cannot write there."""

    def __init__(self, session: str) -> None:
        self.folder = cache_folder() / "logs" / session.replace(":", "")

    def kept(self, about: str, message: str) -> str:
        """The message as a row may hold it."""

        def keep(words: str) -> None:
            with suppress(OSError):  # a full disk must not cost the row
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{hash_of(words)}.txt"
                with path.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{about}\n{words}\n")

        return kept(message, keep)

    def place(self) -> Path | None:
        """None where nothing was said."""
        return self.folder if self.folder.is_dir() else None
