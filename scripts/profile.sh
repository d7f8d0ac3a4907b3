#!/usr/bin/env bash
# Profiles solutions on this machine's GPU: one SQLite file and one stage table for each solution and workload. nsys
# records where it works; where it is missing or cannot import its own stream, CUPTI does, and the output says so.
#   scripts/profile.sh --solutions triton_compact [--definitions D] [--workloads W,W] [--out DIR]
#                      [--harness derby|flashinfer-bench]
# Arguments go to `derby profile run`.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -d "${VENV:-.venv}" ]; then PATH="$(realpath "${VENV:-.venv}")/bin:$PATH"; fi
exec derby profile run --with nsys "$@"
