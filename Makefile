# Everything from a bare clone with Python >= 3.10 and pip: the first call makes .venv, later ones
# use it. `make` alone lists what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where TensorFlow has no CPU-only package, the plain one is the same.
TENSORFLOW ?= $(if $(filter Darwin,$(shell uname)),tensorflow,tensorflow-cpu)
# For example: make test ARGS="-k journal -x"
ARGS ?=
READY := $(VENV)/.legroom-ready

.PHONY: help test test-long test-versions lint browser format demo bench docs venv clean

help:
	@echo "make demo       the same script, plain and under legroom, in the same little memory"
	@echo "make test       lint, types, import directions and the tests"
	@echo "make test-long  the tests that take long"
	@echo "make test-versions  what must hold on every TensorFlow and Keras (PAIRS=\"2.16+3.5\" for some)"
	@echo "make bench      what legroom costs, in ratios (ARGS=\"overhead capped\" for parts, --full)"
	@echo "make docs       the documentation as a site, in site/"
	@echo "make lint       lint, types and import directions only"
	@echo "make browser    a Chromium for the tests of the report page (make test does it)"
	@echo "make format     format and sort imports"
	@echo "make clean      remove .venv and caches"

# More workers than cores: much of the time TensorFlow waits before it says that memory ran out.
# What is short comes last, so that all workers have something to do until the end.
test: lint browser
	@$(BIN)/python -m pytest -m "not long" -n 4 --dist loadfile --no-loadscope-reorder --durations=25 \
	    $(addprefix tests/,contract faults integration versions browser unit) $(ARGS)
	@for backend in torch jax; do \
	    KERAS_BACKEND=$$backend $(BIN)/python -m pytest -m "not long" -n 4 --dist loadfile \
	        --no-loadscope-reorder --durations=10 $(addprefix tests/,contract faults) $(ARGS) \
	        || exit 1; done

test-long: $(READY)
	@$(BIN)/python -m pytest -m long $(ARGS)

# An environment for each pair, in .venvs: see tests/versions.
PAIRS ?=
test-versions:
	@$(PYTHON) tests/versions/run.py --pairs "$(PAIRS)" --tensorflow $(TENSORFLOW) $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

browser: $(READY)
	@sh tests/browser/install.sh $(BIN)/playwright

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

demo: $(READY)
	@$(BIN)/legroom demo $(ARGS)

bench: $(READY)
	@$(BIN)/python benchmarks/run.py $(ARGS)

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

venv: $(READY)

# pip is renewed first: dependency groups need pip 25.1.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "legroom needs Python 3.10 or newer: make PYTHON=python3.11 …" >&2; exit 1; }
	@echo "Preparing $(VENV) with $(TENSORFLOW) and the tools (once, a minute or two) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	    --build-constraint constraints.txt --editable . --group dev $(TENSORFLOW)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	    --target $(VENV)/plot --upgrade --group plot
	@touch $@

clean:
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
