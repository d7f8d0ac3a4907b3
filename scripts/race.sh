#!/usr/bin/env bash
# Ours against the libraries on shapes of models and on fresh ones, within so many seconds on this GPU:
#
#     scripts/race.sh 600                    # every operator, the most important first; rows are appended as they arise
#     FRESH=8 scripts/race.sh 600 --definitions rms_norm,fused_moe
#     WARM=8 scripts/race.sh 600                 # before that: checks, 8 operators at a time, so that most is compiled
#
# Correct first: derby bench checks every solution on every shape before it is timed, and what fails gets a row that says
# so. Plain torch is left out, and our Triton solution where there is one for Hopper. Further arguments go to `derby bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -d "${VENV:-.venv}" ] && PATH="$(realpath "${VENV:-.venv}")/bin:$PATH"
seconds="${1:?usage: scripts/race.sh SECONDS [OPTIONS OF derby bench]}"
shift

libraries_and_ours="$(python -c '
import kernelderby
solutions = kernelderby.open().solutions
hopper = {each.definition for name, each in solutions.items() if each.author == "kernelderby" and name.endswith("_sm90")}
print(",".join(
    name
    for name, each in solutions.items()
    if each.author != "baseline"
    and not (each.author == "kernelderby" and each.definition in hopper and not name.endswith("_sm90"))
))')"
if [ -n "${WARM:-}" ]; then # a run begins with the caches of the latest one in which a solution passed
  python -c '
import sys
import kernelderby
derby, names = kernelderby.open(), sys.argv[1].split(",")
for operator in derby.definitions:
    own = [name for name in names if derby.solutions[name].definition == operator]
    shapes = sorted((each for each in derby.workloads[operator] if each.cost), key=lambda workload: workload.cost.needed())
    if own and shapes:
        print(",".join(own), f"{shapes[0].uuid},{shapes[len(shapes) // 2].uuid}")
' "$libraries_and_ours" | xargs -P "$WARM" -L 1 sh -c 'derby check --solutions "$0" --workloads "$1" > /dev/null 2>&1 || true'
fi
derby bench --budget "$seconds" --origin models --fresh "${FRESH:-6}" --solutions "$libraries_and_ours" \
  --rounds 3 --most-rounds 5 --together "$@"
derby rank --summary operators
