#!/usr/bin/env bash
# Ranks the solutions from the traces in this checkout. Arguments go to `derby rank`.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(realpath "${VENV:-.venv}")/bin:$PATH"
exec derby rank "$@"
