# make bench | test | lint | format | setup. From a fresh clone it needs only python3 (3.11 or newer) with venv, and a pip index.
PYTHON ?= python3
VENV ?= .venv
# Files with the hashes of locks/, unless CONSTRAINTS or EXTRAS is given: then pip chooses, within those constraints.
lock := $(if $(filter-out undefined,$(origin CONSTRAINTS) $(origin EXTRAS)),,locks/$(if $(shell command -v nvidia-smi),gpu,cpu).txt)
CONSTRAINTS ?= constraints.txt
comma := ,
EXTRAS ?= measure,dev$(if $(shell command -v nvidia-smi),$(comma)gpu)
pip = $(VENV)/bin/python -m pip install --quiet --no-compile
locked = $(pip) --no-deps --require-hashes -r
export VENV
# pip's compiling of every file took half its time: Python compiles what is imported, and keeps it. Workers keep nothing,
# so what they import is imported once before.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup bench test cheats lint packed collected format
help:
	@echo "make bench  check, measure and rank the solutions (without a GPU: check, then rank the recorded traces)"
	@echo "make test   what CI runs: make lint, derby pack --check, pytest"
	@echo "make cheats all exploits of the judge and the fences; make test takes the quick ones"
	@echo "make lint   ruff (rules and format) and mypy; make format mends what ruff can"
	@echo "make setup  only the environment in $(VENV), behind both; your own torch: see CONTRIBUTING.md"

setup: $(VENV)/.kernelderby

# The stamp makes a second run quick: installed again only when the requirements or the pins changed.
$(VENV)/.kernelderby: pyproject.toml constraints.txt $(wildcard locks/*.txt)
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
ifneq ($(lock),)
	$(locked) locks/pip.txt
	$(locked) $(lock) $(if $(filter locks/cpu.txt,$(lock)),2>/dev/null || $(locked) locks/gpu.txt  # no such CPU build of torch in this index)
	$(pip) --no-deps --no-build-isolation -e .
else
	$(pip) --upgrade $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) pip
	$(pip) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(EXTRAS)]'
endif
	-@$(VENV)/bin/python -c 'import flashinfer_bench, torch, triton.language'
	@touch $@

bench: setup
	@scripts/bench.sh

lint: setup
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: setup
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# CI has two cores; a third process of tests works while one waits for a time-out or a browser.
test: setup
	$(MAKE) --no-print-directory -j2 lint packed collected
	$(VENV)/bin/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=10

# All exploits, those that wait for time-outs too; on a GPU machine those of test_cheats_gpu.py as well.
cheats: setup
	DERBY_TESTS_ALL=1 $(VENV)/bin/python -m pytest -n0 tests/cheats

packed: setup
	$(VENV)/bin/derby pack --check

# Beside mypy: the tests' modules are compiled with their asserts, which every process of tests would do by itself. What
# fails here fails there, with its reason.
collected: setup
	-@$(VENV)/bin/python -m pytest --collect-only >/dev/null
