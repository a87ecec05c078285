# `make demo` runs the demo, `make test` checks everything.
# Both first install Bespoke and the versions of constraints.txt into .venv, if this has not been done.

PYTHON ?= python3
ARGS ?=
MINUTES ?= 30
SEED ?=
METHODS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished

# An environment variable, not --constraint, so that it applies to the build backend too.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The environment is valid if it runs and was created here: its scripts contain its path, so it cannot be moved or copied.
VENV_IS_VALID := test ! -e $(UNFINISHED) \
	&& grep -qsF "$$(pwd -P)/$(BIN)/python" $(BIN)/pip \
	&& $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help demo dist install lint system-packages docs docs-links test torture check format clean force

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: install  ## Compare nine methods on handwritten digits, about a minute
	@$(BIN)/bespoke demo

install: $(INSTALLED)  ## Create .venv and install Bespoke (other targets do this if needed)
	@:

ifneq ($(shell $(VENV_IS_VALID) && echo valid),valid)
$(INSTALLED): force
endif

$(INSTALLED): pyproject.toml constraints.txt
	@if ! { $(VENV_IS_VALID); }; then \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
			echo "Bespoke needs Python 3.11 or newer, which '$(PYTHON)' is not; choose another, as in: make PYTHON=python3.11" >&2; \
			exit 1; \
		}; \
		echo "Creating $(VENV) with $$($(PYTHON) --version)"; \
		rm -rf $(VENV) && mkdir $(VENV) && touch $(UNFINISHED) && $(PYTHON) -m venv $(VENV) || exit 1; \
	fi
	@echo "Installing Bespoke into $(VENV), which takes a minute or two and is repeated only if requirements change"
	@rm -f $(INSTALLED) && touch $(UNFINISHED)
	@$(BIN)/python -m pip install --quiet --quiet --editable '.[cluster,dev,docs,figures,flower,privacy]'
	@rm -f $(UNFINISHED) && touch $(INSTALLED)

lint: install  ## Format, lint, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --strict src evidence
	@$(BIN)/lint-imports --no-logo

system-packages:
	@tests/install_system_packages.sh

docs: install  ## Build the documentation site, build/site/index.html
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env docs build/site
	@echo "build/site/index.html"

docs-links: install  ## Check the documentation's links to other servers (needs a network)
	@$(BIN)/python -m sphinx --quiet --fresh-env -b linkcheck docs build/links

test: lint system-packages  ## Everything that CI checks: lint and all tests (ARGS="-k ditto" selects some)
	@$(BIN)/pytest -q -n auto --dist worksteal --durations 25 -m "not alone" $(ARGS)
	@$(BIN)/pytest -q -m alone $(ARGS) || test $$? -eq 5  # 5: no test was selected

torture: install  ## Torture a deployment and check its history (MINUTES=30, SEED=..., METHODS=ditto,scaffold)
	@$(BIN)/python -m tests.torture --seconds $$(( $(MINUTES) * 60 )) $(if $(SEED),--seed $(SEED)) $(if $(METHODS),--methods $(METHODS))

check: lint  ## Lint and the fast tests, under two minutes
	@$(BIN)/pytest -q -n auto -m "not slow and not alone" $(ARGS)

dist: install  ## Build sdist and wheel into dist/
	@rm -rf dist && $(BIN)/python -m build --quiet

format: install  ## Format the code and apply the linter's fixes
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

clean:  ## Remove .venv, builds and caches, but no results
	@rm -rf $(VENV) build dist src/*.egg-info evidence/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src evidence tests -name __pycache__ -type d -prune -exec rm -rf {} +
