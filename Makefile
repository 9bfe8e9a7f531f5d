# make demo: set up, train a small model on the CPU, show what it can do.
# make test: set up, lint, types, all tests.
# make mutants: are deliberate faults noticed? TENTH=3: those of one tenth; TENTH=commit: of the commit's.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test mutants clean

demo: .venv/plot
	$(BIN)/cdcd demo

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

mutants: .venv/dev
	$(BIN)/python tests/mutants/mutation_check.py $(if $(TENTH),--tenth $(TENTH))

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cdcd needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/plot: .venv/created pyproject.toml constraints.txt
	$(INSTALL) ".[plot]"
	@touch $@

.venv/dev: .venv/created pyproject.toml constraints.txt
	$(INSTALL) ".[dev]"
	@touch $@ .venv/plot

clean:
	rm -rf .venv
