# `make demo` and `make test` set up what they need; a second call is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-all bench soak lint fmt clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "agentrl needs Python 3.11 to 3.13; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	touch $(STAMP)

demo: $(STAMP)
	@test ! -f runs/demo/result.json || mv runs/demo "runs/demo-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/python -m agentrl.runners.rstar2 configs/demo.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow and not gpu'

test-all: $(STAMP)
	$(BIN)/python -m pytest -m 'not gpu'

bench: $(STAMP)
	$(BIN)/python benchmarks/rollout/embedded_engine.py
	$(BIN)/python -m benchmarks.judge.floor
	$(BIN)/python -m benchmarks.judge.speed
	$(BIN)/python -m benchmarks.judge.overhead
	$(BIN)/python -m benchmarks.judge.mix

soak: $(STAMP)
	$(BIN)/python -m benchmarks.judge.soak

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build
