"""python -m kernelderby.measure.cluster FOLDER DEVICE: what host.py starts. Definitions run in it (wire/early.py)."""

import sys
from pathlib import Path

from kernelderby.measure.wire.early import begin_judging

if __name__ == "__main__":
    root, device = Path(sys.argv[1]), sys.argv[2]
    begin_judging(root, [root], on_gpu=device != "cpu")
    from kernelderby.measure.cluster.serve import main

    main(root, device)
