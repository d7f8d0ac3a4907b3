"""The steps of Containerfile without a container: python scripts/containerfile.py FOLDER [--resolve]

In a new FOLDER, which stands for the root, it runs the steps of the file in their order, ENV, WORKDIR and COPY below it
and RUN in sh, up to the first that fails. It is not the image: FROM is this machine, and for `apt-get` it only checks
that the packages are installed here. --resolve: pip finds versions that fit each other and installs the package alone,
for a machine without room for 15 GB of rivals.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
_OF_APT = {
    "git": "git --version",
    "python3-dev": "python3-config --includes",
    "python3-venv": "python3 -c 'import venv'",
}


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and the rest of its line; lines that end in a backslash go on."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in kept.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())


class Image:
    def __init__(self, folder: Path, resolve: bool) -> None:
        self.root, self.place, self.resolve = folder.resolve(), folder.resolve(), resolve
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
        self.environment = {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def step(self, word: str, rest: str) -> int:
        print(f"+ {word} {rest}", flush=True)
        if word == "ENV":
            for each in shlex.split(rest):
                name, _, value = each.partition("=")
                value = re.sub(r"(?<![\w.])(?=/opt/)", str(self.root), value)
                self.environment[name] = re.sub(r"\$(\w+)", lambda found: self.environment[found[1]], value)
        elif word == "WORKDIR":
            self.place = self.root / rest.lstrip("/")
            self.place.mkdir(parents=True)
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                to = self.place / target if target != "./" else self.place / source
                copy = shutil.copytree if (_CHECKOUT / source).is_dir() else shutil.copy
                copy(_CHECKOUT / source, to)
        elif word == "RUN":
            return self.run(rest)
        return 0

    def run(self, command: str) -> int:
        if command.startswith("apt-get"):
            named = command.partition(" install ")[2].partition("&&")[0].split()
            wanted = [_OF_APT.get(name, "false") for name in named if not name.startswith("-")]
            command = " && ".join(
                f"{{ {look} >/dev/null || {{ echo 'not here: {look}'; exit 1; }}; }}" for look in wanted
            )
        if self.resolve and command.startswith("pip install"):
            package = next(word for word in shlex.split(command) if word.startswith("."))
            if code := self.shell(command.replace("pip install", "pip install --quiet --dry-run", 1)):
                return code
            command = f"pip install --quiet {package.partition('[')[0]}"
        return self.shell(command)

    def shell(self, command: str) -> int:
        return subprocess.run(["sh", "-c", command], cwd=self.place, env=self.environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--file", type=Path, default=_CHECKOUT / "Containerfile")
    asked = parser.parse_args()
    if asked.folder.exists():
        print(f"{asked.folder}: exists; name a new folder", file=sys.stderr)
        return 1
    asked.folder.mkdir(parents=True)
    image = Image(asked.folder, asked.resolve)
    for word, rest in steps(asked.file.read_text(encoding="utf-8")):
        if code := image.step(word, rest):
            print(f"{asked.file}: {word} {rest[:60]}: ended with {code}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
