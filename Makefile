# loaderbench: `make help` explains every target.
VENV    ?= .venv
PYTHON  ?= python3
RESULTS ?= results
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
BENCH   ?= --res 256,512,1024 --loader serial,multiprocess,threaded,dali --device emulated --precision fp32 --cache warm --duration 10

# Tests that measure nothing run beside each other, more of them than two processors since many wait; those marked `alone`
# behind them, one after the other.
# A neighbour on a shared machine can spoil what is timed or waited for: a failure counts when it comes again, a while later.
BESIDE  := $(BIN)/python -m pytest -n 4 --dist worksteal --reruns 1
ALONE   := $(BIN)/python -m pytest --reruns 2 --reruns-delay 15 $$(grep -rl --include='test_*.py' 'mark[.]alone' tests)

# Where it is set, as in some container images, every process compiles the package and the tests again.
test test-all test-beds: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup bench test test-all test-beds screens docs check gpu-check benchmarks report clean

help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  VENV=DIR     the virtual environment to make and use (default .venv)'
	@echo '  RESULTS=DIR  where runs are kept (default results)'
	@echo '  BENCHMARKS=FLAGS  e.g. "--quick" (16 minutes) or "--only loaders,nfs"'
	@echo '  GPU_CHECK=FLAGS  e.g. "--only study,checks --seconds 8 --out DIR"'
	@echo '  BENCH=FLAGS  what make bench sweeps (default: $(BENCH))'

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[run,dali,dev]'
	touch $@

setup: $(STAMP) ## Make the virtual environment and install everything into it

bench: $(STAMP) ## Measure 3 resolutions x 4 loaders on an emulated H200 and print each verdict
	$(BIN)/loaderbench sweep $(BENCH) --results $(RESULTS)

test: $(STAMP) ## Run the tests that need no privilege and little time
	$(BESIDE) -m "not slow and not alone"
	$(ALONE) -m "alone and not slow"

test-all: $(STAMP) ## Run every test that this machine allows
	$(BESIDE) -m "not slow and not alone"
	$(BIN)/python -m pytest -m "alone or slow"

test-beds: $(STAMP) ## Install what Debian has for the storage beds (as root) and run their tests: none may be skipped
	$(BIN)/python -m loaderbench.selftest | sh -e
	LOADERBENCH_REQUIRE_BEDS=1 $(BIN)/python -m pytest tests/beds

screens: $(STAMP) ## Write anew what every command prints (tests/screens/golden); with FACTS=yes numbers, units and codes too
	LOADERBENCH_SCREENS=$(if $(FACTS),facts,words) $(BIN)/python -m pytest -q -n 4 --dist worksteal tests/screens tests/test_light.py

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs ## Build the pages as a site, into build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: docs $(STAMP) ## Lint, type-check, check the links of the pages, and run the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BESIDE) -q -m "not slow and not alone"
	$(BIN)/python -m pytest -q -m "alone and not slow"

gpu-check: $(STAMP) ## On a GPU: its tests, the study, precision, models, trace, self-test, overhead, into results/reference
	$(BIN)/python benchmarks/gpu_check.py $(GPU_CHECK)

benchmarks: $(STAMP) ## Loaders against their peers and the limit, overhead, fidelity, time to a verdict, NFS, models (100 minutes)
	$(BIN)/python benchmarks/all.py --out $(RESULTS)/benchmarks $(BENCHMARKS)

report: $(STAMP) ## Write RESULTS/report.html from the stored runs
	$(BIN)/loaderbench report --results $(RESULTS)

clean: ## Remove the environment, caches and generated data sets; results are kept
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis datasets/*/
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
