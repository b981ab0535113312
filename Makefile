# PYTHON is the interpreter of the virtual environment: 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: build test verify lint sample golden evidence gallery bench
.DELETE_ON_ERROR:

build: .venv/.run          ## the default release into ./kernelswarm
	@echo "building the default release into ./kernelswarm"
	$(BIN)/python -m generator build --out kernelswarm

test: lint                 ## linters and the default tests
	@echo "running the tests"
	$(BIN)/python -m pytest -n 2 --dist loadfile

verify: lint .venv/.engines .venv/.evidence    ## whole releases, compilers, every kernel: slow
	@echo "running the slow checks"
	$(BIN)/python -m pytest -n 2 --dist loadfile -rs -m "slow or evidence" --ignore tests/test_matrix.py
	@echo "compiling and running every kernel again: is the committed evidence what comes out?"
	$(BIN)/python -m generator evidence verify
	@echo "loading builds with every version of datasets that people use"
	$(BIN)/python -m pytest -rs -m slow tests/test_matrix.py

lint: .venv/.test          ## style, types, layers
	@echo "checking style, types and layers"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sample: .venv/.test        ## the small build that tests and docs use
	@echo "building episodes 0-67 into data/sample"
	$(BIN)/python -m generator build --episodes 68 --validation 0 --out data/sample --overwrite --figures

evidence: .venv/.evidence  ## the tables of what compilers and checks say of every source: slow
	@echo "compiling every source and running every kernel on the CPU"
	$(BIN)/python -m generator evidence build

gallery: .venv/.run        ## docs/gallery.md, every op's ladder
	@echo "writing docs/gallery.md"
	PYTHONPATH=. $(BIN)/python benchmarks/gallery.py > docs/gallery.part
	mv docs/gallery.part docs/gallery.md

golden: .venv/.test         ## the digests that pin the data of this version
	@echo "writing tests/golden.json"
	PYTHONPATH=. $(BIN)/python tests/golden.py

bench: .venv/.run          ## seconds, memory and bytes of a build
	$(BIN)/python benchmarks/bench_build.py

.venv/.made:
	@echo "making the virtual environment .venv with $(PYTHON)"
	@$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'error: Python is too old, got %d.%d, allowed: 3.11 and up, run make PYTHON=python3.11' % sys.version_info[:2])"
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.run: .venv/.made setup.cfg pyproject.toml
	@echo "installing kernelswarm and what it runs on"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/.test: .venv/.run
	@echo "installing what the tests and linters need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,dev]"
	@touch $@

.venv/.engines: .venv/.run
	@echo "installing the cluster engine, the object store, and a stand-in for the latter in an environment of its own"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dask,s3]"
	$(PYTHON) -m venv .venv/moto
	.venv/moto/bin/python -m pip install --quiet --disable-pip-version-check "moto[server,s3]>=5"
	@touch $@

.venv/.evidence: .venv/.run
	@echo "installing the compilers that the evidence comes from"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[evidence]"
	@touch $@
