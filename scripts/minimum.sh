#!/usr/bin/env bash
# scripts/minimum.sh [PYTHON...]: the tests that need no torch, with the lowest version of every dependency that
# pyproject.toml names, on each of these Pythons (default: python3.11 to python3.13, those that are there).
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- python3.11 python3.12 python3.13
failed=0
for python in "$@"; do
    "$python" -c "" 2>/dev/null || { echo "$python: not here"; continue; }
    place=$(mktemp -d)
    "$python" -m venv "$place"
    mapfile -t lowest < <("$place/bin/python" - <<'PY'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
old = sys.version_info < (3, 13)
for each in [*project["dependencies"], *(one for extra in ("plot", "pandas") for one in project["optional-dependencies"][extra])]:
    if "python_version" in each and ("< '3.13'" in each) != old:
        continue
    print(re.sub(r"([\w-]+)>=([\d.]+).*", r"\1==\2", each))
PY
)
    echo "$("$place/bin/python" --version): ${lowest[*]}"
    "$place/bin/pip" install --quiet --no-compile "${lowest[@]}" pytest pytest-timeout pytest-xdist
    # Old matplotlib speaks up at new pyparsing; what torch is for cannot be asked here.
    PYTHONPATH=$PWD "$place/bin/python" -m pytest -n2 -q -p no:cacheprovider -W "ignore::DeprecationWarning" \
        --ignore=tests/measure --ignore=tests/solutions --ignore=tests/definitions --ignore=tests/test_compare_sass.py \
        --ignore=tests/cli/test_readme.py --ignore=tests/edges/test_definitions_code.py --deselect tests/test_origin.py \
        tests || failed=1
    rm -rf "$place"
done
exit $failed
