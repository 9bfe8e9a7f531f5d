# make demo: set up, show what the models of models/ can do. make demo TRAIN=1: train one on the CPU and show it.
# make check: set up, lint, types, the exact tests: within a minute once set up.
# make test: set up, lint, types, all tests, in the reading order of tests/README.md.
# make mutants: are deliberate faults noticed? TENTH=3: those of one tenth; TENTH=commit: of the commit's.
# make fuzz: 20,000 odd commands and damaged files; CASES=1000 SEED=7. make trials: kills, interrupts, races.
# make site: the documentation site, into site/.
# make imports: draw the graph of the imports into docs/images/imports.png.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e
MODELS := models/pyproject.toml $(wildcard models/*/config.json)
# One process reads a file, so that its tests share what their fixtures train.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo check test lint mutants fuzz trials site imports clean

demo: .venv/plot
	$(BIN)/cdcd demo $(if $(TRAIN),--train)

check: lint
	$(PYTEST) tests/exact tests/style

test: lint
	$(PYTEST)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

mutants: .venv/dev
	$(BIN)/python tests/mutants/mutation_check.py $(if $(TENTH),--tenth $(TENTH))

fuzz: .venv/dev
	$(BIN)/python tests/fuzz/fuzz.py --cases $(or $(CASES),20000) --seed $(or $(SEED),1)

trials: .venv/dev
	$(BIN)/python tests/fuzz/trials.py --seed $(or $(SEED),1)

site: .venv/dev
	$(BIN)/python scripts/site.py build/site
	$(BIN)/zensical build --strict --clean

imports: .venv/dev
	$(BIN)/python tests/style/imports.py docs/images/imports.png

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cdcd needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/plot: .venv/created pyproject.toml constraints.txt $(MODELS)
	$(INSTALL) ".[plot,serve]" ./models
	@touch $@

.venv/dev: .venv/created pyproject.toml constraints.txt $(MODELS)
	$(INSTALL) ".[dev]" ./models
	@# TypeScript checks the page of the playground; without npm that test is skipped.
	@! command -v npm > /dev/null || npm ci --silent --no-audit --no-fund || true
	@touch $@ .venv/plot

clean:
	rm -rf .venv node_modules
