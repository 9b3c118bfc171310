# Whetstone: `make run` sets everything up and starts the studio, `make check` is the inner loop, `make test` checks all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run setup serve check unit test beside lint screenshots audit campaign late ray test-gpu test-gpu-torch clean

BIN := .venv/bin
# Tests run beside each other, each on one thread, but what measures time has the machine to itself. Three processes on two
# cores, since much of a test with servers is waiting; which tests share one process says tests/sharing.py.
AT_ONCE ?= 3
# A Python that has torch with CUDA, for `make test-gpu-torch`.
PYTHON ?= python3
LIMIT = $(if $(UNTIL),--until $(UNTIL))
BESIDE := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(AT_ONCE) --dist loadgroup --no-loadscope-reorder --durations 40 --durations-min 5
# Processes that start by the hundred read compiled modules, whatever the shell that runs make says.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s $$'\t'

run: setup ## Set up what is missing, start supervisor and studio, print the address; engines install beside the page
	@exec $(BIN)/whetstone up --install-engines

setup: ## Make .venv from assets/locks/studio.txt
	@.ci/system
	@.ci/setup run

serve: setup ## Install the environments that serve models, from their locks
	@$(BIN)/python .ci/serve.py

check: ## Lint, types and the unit tests that start no process: the inner loop
	@.ci/setup test
	@$(MAKE) --no-print-directory -j 2 lint unit

unit:
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q -m "not process and not campaign and not gpu" tests/unit

test: ## Set up what the tests need and run all but the long ones
	@.ci/system test
	@.ci/setup test
	@.ci/browser
	@$(BIN)/python .ci/serve.py
	@$(MAKE) --no-print-directory -j 2 lint beside
	$(BIN)/pytest -m "alone and not campaign and not gpu" tests/integration/load

beside:
	$(BESIDE) -m "not alone and not campaign and not gpu"

lint: ## Style, format and types
	@.ci/setup test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

screenshots: ## Photograph every page in both themes and at both widths, and renew the pictures of the README
	@.ci/system
	@.ci/setup test
	@$(BIN)/python .ci/serve.py
	@.ci/browser
	rm -rf build/screenshots
	$(BIN)/pytest --photograph tests/browser/test_pictures.py tests/browser/test_loop.py tests/browser/test_pages.py tests/browser/test_report_accessible.py

audit: ## Ask the package index for known vulnerabilities of what the locks name
	@.ci/setup test
	@$(BIN)/python .ci/audit.py

campaign: audit ## The long tests: kills, families, A/A, and every property with all its examples. UNTIL=seconds since 1970: no test begins after it
	@.ci/system test
	@$(BIN)/python .ci/serve.py serve compress quality
	$(BIN)/pytest -m "campaign and alone and not gpu" --timeout 3600 $(LIMIT) tests/campaign
	$(BESIDE) -m "(campaign or hypothesis) and not alone and not gpu and not ray" --hypothesis-profile full --timeout 3600 $(LIMIT)

late: ## The tests that start processes, each of which is late at random before and after what others can see: finds races
	@.ci/system test
	@.ci/setup test
	PYTHONPATH=$(CURDIR)/tests/late LATE_S=0.4 $(BESIDE) -m "not alone and not campaign and not gpu and not ray and not hypothesis" tests/unit tests/integration tests/ui

ray: ## Jobs on a real Ray cluster of three nodes on this machine, with nodes and the head killed
	@.ci/system test
	@.ci/setup test
	@$(BIN)/python .ci/serve.py ray
	OMP_NUM_THREADS=1 $(BIN)/pytest -m ray --timeout 900

test-gpu: ## The tests that need an NVIDIA GPU
	@.ci/system
	@.ci/setup test
	@$(BIN)/python .ci/serve.py
	$(BIN)/pytest -m gpu --timeout 1800

test-gpu-torch: ## Those of them that need torch with CUDA alone, by the Python named as PYTHON
	$(PYTHON) -m pytest -c /dev/null --rootdir . --noconftest -p no:cacheprovider -q tests/gpu

clean: ## Remove the environments and caches; nothing of a user's home
	rm -rf .venv .engines .mypy_cache .ruff_cache .hypothesis
