"""A wheel and an sdist hold files of the checkout. hatch follows symlinks, and one in the set could lead anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("kernelderby", "definitions", "workloads", "solutions", "traces", "profiles")


def links(root: Path) -> list[str]:
    """The symlinks under the packed folders, relative to the root, and packed folders that are symlinks themselves."""
    found = []
    for part in PARTS:
        if (root / part).is_symlink():
            found.append(part)
            continue
        for place, folders, names in os.walk(root / part):
            found += [
                os.path.relpath(each, root) for name in (*folders, *names) if (each := Path(place, name)).is_symlink()
            ]
    return sorted(found)


class NoLinks(BuildHookInterface):  # type: ignore[type-arg, misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """RuntimeError where a link would be packed."""
        if found := links(Path(self.root)):
            more = f" and {len(found) - 1} more" if found[1:] else ""
            raise RuntimeError(f"{found[0]}{more}: is a symlink, which no package follows; put the file itself there")
