#!/usr/bin/env bash
# Checks, measures and ranks the solutions on this machine's GPU. Without a GPU: checks at small sizes in Triton's
# interpreter, then ranks the recorded traces, and says which is which. Arguments go to `derby bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(realpath "${VENV:-.venv}")/bin:$PATH"

derby pack
if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  derby bench "$@"
  derby rank
else
  printf '\nNo GPU here, so nothing is timed on this machine.\n'
  printf '1. Correctness, on this CPU, at the small sizes of each definition (Triton solutions in its interpreter):\n\n'
  checked=0
  derby check || checked=$?
  printf '\n2. Ranking of traces that were recorded earlier on the GPU that the table names, not on this machine:\n\n'
  derby rank
  exit "$checked"
fi
