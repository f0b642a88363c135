# Every target sets up what it needs: a fresh clone only needs Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.ready
CONSTRAINTS := constraints.txt
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-compile --constraint $(CONSTRAINTS)
# pip compiles on one core, and processes that may write no bytecode import torch twice as slowly
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
SPARK := $(VENV)/wheels/.pyspark

MAKEFLAGS += --jobs=2  # PySpark's wheel is built while torch is installed

.PHONY: demo test test-distributed test-thorough lint docs bench bench-gpu clean

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "stepladder needs Python 3.11 or later: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# the pip of older Pythons takes minutes to choose versions
	$(PIP) install --upgrade pip
	touch $@

# What a user installs: enough for the demo
$(CORE): pyproject.toml $(CONSTRAINTS) | $(VENV)/.pip
	$(INSTALL) torch
	$(INSTALL) --editable .
	$(COMPILE)
	touch $@

# PySpark has no wheel; one that is not compressed takes half the time
$(SPARK): $(CONSTRAINTS) | $(VENV)/.pip
	$(PIP) wheel --no-deps --config-settings '--build-option=--compression=stored' \
		--wheel-dir $(@D) pyspark --constraint $(CONSTRAINTS)
	touch $@

# Everything that the tests need
$(STAMP): $(CORE) $(SPARK)
	$(INSTALL) --find-links $(VENV)/wheels --editable '.[dev,tensorboard,mlflow,onnx,gpu,spark,ray,s3,delta,asynchronous]'
	$(COMPILE)
	touch $@

demo: $(CORE)
	$(BIN)/python examples/demo/get_photos.py demo_data
	$(BIN)/stepladder prepare examples/demo/demo.yaml
	$(BIN)/stepladder train --data.store demo_data/store --run.dir runs/first
	$(BIN)/stepladder climb examples/demo/demo.yaml
	$(BIN)/python examples/demo/check_result.py runs/first runs/demo

# compiled once: hundreds of processes of the tests import the package
test: $(STAMP)
	$(BIN)/python -m compileall -q -j 0 src
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder -m "not distributed and not thorough"

# The remaining tests with clusters, Spark and Ray: minutes, as these must start
test-distributed: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 2 --dist loadfile -m distributed

# All tests that `make test` leaves out
test-thorough: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 2 --dist loadfile \
		-m "distributed or thorough"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/codespell src tests docs examples bench README.md CHANGELOG.md

# the pages are in the repository: building the site needs mkdocs alone
docs:
	test -x $(VENV)-docs/bin/mkdocs || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install \
		--constraint $(CONSTRAINTS) mkdocs-material
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@echo "open site/index.html"

bench: $(STAMP)
	$(INSTALL) --editable '.[bench]'
	$(BIN)/python -m bench.run_all $(if $(CALTECH),--caltech $(CALTECH)) \
		$(if $(LIGHTNING),--lightning-python $(LIGHTNING))

# PYTHON needs a torch that supports the GPU; WHEELS is a folder with missing packages
bench-gpu:
	PYTHON=$(PYTHON) bench/gpu/run.sh $(WHEELS)

clean:
	rm -rf $(VENV) $(VENV)-docs build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
