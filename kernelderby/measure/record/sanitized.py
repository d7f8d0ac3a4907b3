"""A process in which compute-sanitizer looks at one call: python -m kernelderby.measure.record.sanitized REQUEST.json

Nothing but the solution's own call runs on the GPU beside what makes its inputs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.measure.worker.commands import Worker
from kernelderby.measure.worker.failures import NotLoaded, told
from kernelderby.store.fields import read_json


class SanitizeRequest(Struct, frozen=True):
    """case: Case.to_json."""

    root: str
    definition: str
    solution: str
    case: dict[str, Any]
    device: str


def main() -> None:
    request = read_json(Path(sys.argv[1]), SanitizeRequest)
    worker = Worker(request.root, request.device)
    try:
        worker.load(request.definition, request.solution)
        worker.call_once(request.case)
    except NotLoaded as error:
        sys.exit(str(error))
    except Exception as error:  # noqa: BLE001 - whatever the solution raises
        sys.exit(told(error))


if __name__ == "__main__":
    main()
