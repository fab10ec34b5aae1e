# make demo    fetch the model, run prompts that share prefixes, show what was reused
# make test    the tests
# make check   formatting, lint, import contracts, types
# make setup   a virtual environment in .venv with everything; the others call it

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# torch goes first and alone, so that which build of it is installed is said in one place:
# make setup TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0

.PHONY: setup demo test check clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'radixgen needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/radixgen demo

test: setup
	TRITON_INTERPRET=1 RADIXGEN_CHECK=1 $(BIN)/python -m pytest -m "not gpu"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
