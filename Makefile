# make demo    fetch the model, run prompts that share prefixes, show what was reused
# make test    the tests
# make check   formatting, lint, import contracts, types
# make clients environments of other people's clients in .venv-clients, for tests of the server
# make setup   a virtual environment in .venv with everything; the others call it

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# torch goes first and alone, so that which build of it is installed is said in one place:
# make setup TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0

.PHONY: setup clients demo test check clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'radixgen needs Python 3.11 or newer')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(STAMP)

# Versions that clients want clash with ours and with one another's: two environments hold them.
# Without compiling all of what is mostly never imported, they are made twice as fast.
clients: .venv-clients/current/.installed .venv-clients/older/.installed

.venv-clients/%/.installed: tests/clients/%.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $<
	touch $@

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
	rm -rf .venv .venv-clients build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
