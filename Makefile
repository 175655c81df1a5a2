# Every target creates .venv by itself; `make` alone lists them.
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
# Two stamps: what the demo needs, and what developers need in addition.
STAMP := .venv/.installed
DEV := .venv/.developed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

# Tiny matrices run slower on many threads, and two test workers share the machine.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help install demo test audit check bench study reproduce soak fuzz docs course format golden clean base-en base-fr

help: ## List the targets
	@echo "regraft: pre-train on your own text, graft a classifier, prove what it was worth."
	@echo
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16
	@echo
	@echo "Start with \`make demo\`. Another interpreter: \`make demo PYTHON=python3.12\`."

$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up .venv with $(PYTHON) (a minute or two, once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "regraft needs Python 3.10 or newer; pass PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) '.[studio,xlsx]'
	@touch $@
	@echo "Done: .venv is ready."

$(DEV): $(STAMP)
	@echo "Installing what tests need: linters, transformers, ONNX (a minute or two, once) ..."
	@$(INSTALL) '.[dev]'
	@touch $@

install: $(STAMP) ## Set up .venv only: a minute or two

demo: $(STAMP) ## The whole story on real reviews: about ten minutes
	@$(BIN)/regraft demo

base-en: $(STAMP) ## A base of 50,000 English film reviews in runs/base-en: minutes
	@$(BIN)/regraft data fetch imdb-50k --out runs/text-en
	@$(BIN)/regraft pretrain runs/text-en/all.jsonl --preset bag --out runs/base-en --resume

base-fr: $(STAMP) ## A base of French sentences and book reviews in runs/base-fr: minutes
	@$(BIN)/regraft data fetch french-sentences --out runs/text-fr/sentences
	@$(BIN)/regraft data fetch french-books --out runs/text-fr/books
	@$(BIN)/regraft pretrain runs/text-fr/sentences/all.jsonl runs/text-fr/books/all.jsonl \
		--preset bag --out runs/base-fr --resume

test: $(DEV) ## All tests: the fast suite, then the slow one
	$(TEST_ENV) $(BIN)/pytest -q -n $(JOBS) -m "not slow"
	$(TEST_ENV) $(BIN)/pytest -q -n $(JOBS) -m slow || test $$? -eq 5 # 5: none is marked slow

# Numbers of `make soak`: kills over all commands, requests to each of two classifiers, and which
# share of the JSON values of a run folder is changed (one in MUTATE).
KILLS ?= 1000
REQUESTS ?= 50000
MUTATE ?= 1

soak: $(DEV) ## Kills, requests and changed run folders in numbers: hours; KILLS=20 REQUESTS=1000 MUTATE=400: minutes
	$(TEST_ENV) PYTHONPATH=tests $(BIN)/python -m chaos.soak --kills $(KILLS) --requests $(REQUESTS) --mutate $(MUTATE)

fuzz: $(DEV) ## Random files, folders and requests for every reader: minutes; EXAMPLES=100000: longer
	REGRAFT_FUZZ_EXAMPLES=$(or $(EXAMPLES),3000) $(TEST_ENV) $(BIN)/pytest -q -n $(JOBS) tests/chaos/test_fuzz.py

audit: $(DEV) ## Packages with licences, known vulnerabilities, a bill of materials
	$(BIN)/python .ci/audit.py

check: $(DEV) ## What CI runs: format, lint, types, imports, spelling, docs, then tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	-@$(BIN)/python .ci/audit.py | tail -n 1
	$(BIN)/python docs/generate.py --check
	$(SITE)
	@$(MAKE) --no-print-directory test

# Two kinds: speed compared with peers, and which choices make good models.
SPEED := pretraining masked finetuning tokenising parallel serve
QUALITY := objectives optimizers recipes active
MEASURE = for name in $(1); do echo "== $$name"; \
	$(BIN)/python benchmarks/$$name.py --json docs/benchmarks/$$name.json --plot docs/benchmarks/$$name.png || exit 1; done

bench: $(DEV) ## Speed compared with peers: an hour
	@$(INSTALL) '.[bench]'
	@mkdir -p docs/benchmarks
	@$(call MEASURE,$(SPEED))

study: $(DEV) ## Which objective, optimiser and recipe is best, with few labels: two hours
	@mkdir -p docs/benchmarks
	@$(call MEASURE,$(QUALITY))

reproduce: $(DEV) ## Reproduce the published numbers: two minutes; an hour with ALL=1
	$(BIN)/python benchmarks/reproduce.py $(if $(ALL),--all)

# Warnings are errors (strict in mkdocs.yml); the variable silences an advertisement.
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(DEV) ## Regenerate docs/reference/ and build the site into site/
	$(BIN)/python docs/generate.py
	$(SITE)
	@echo "Open site/index.html in a browser; it works offline."

course: $(DEV) ## Run the course and rewrite docs/course/: a few minutes
	$(BIN)/python docs/course.py

format: $(DEV) ## Format the code and fix what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

golden: $(DEV) ## Rewrite tests/golden/; read the diff before you commit it
	REGRAFT_UPDATE_GOLDEN=1 $(TEST_ENV) $(BIN)/pytest -q -k golden

clean: ## Remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
