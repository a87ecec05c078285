# Two commands: `make demo` shows it at work, `make test` checks everything.
# Both first install what they need into .venv, once, with the versions of constraints.txt.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished

# By the environment and not by --constraint, so that it also holds for the build backend.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An environment is sound if it runs and was made here: its scripts name the folder, so it survives no move or copy.
SOUND := test ! -e $(UNFINISHED) \
	&& grep -qsF "$$(pwd -P)/$(BIN)/python" $(BIN)/pip \
	&& $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help demo install lint system-packages test check format clean again

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: install  ## See it at work, about a minute
	@$(BIN)/bespoke demo

install: $(INSTALLED)  ## Make .venv and install into it (the other targets do it themselves)
	@:

ifneq ($(shell $(SOUND) && echo sound),sound)
$(INSTALLED): again
endif

$(INSTALLED): pyproject.toml constraints.txt
	@if ! { $(SOUND); }; then \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
			echo "Bespoke needs Python 3.11 or newer, and '$(PYTHON)' is not: name one, as in make PYTHON=python3.11" >&2; \
			exit 1; \
		}; \
		echo "Making $(VENV) with $$($(PYTHON) --version)"; \
		rm -rf $(VENV) && mkdir $(VENV) && touch $(UNFINISHED) && $(PYTHON) -m venv $(VENV) || exit 1; \
	fi
	@echo "Installing Bespoke into $(VENV): a minute or two, and only when its requirements change"
	@rm -f $(INSTALLED) && touch $(UNFINISHED)
	@$(BIN)/python -m pip install --quiet --quiet --editable '.[dev,flower,privacy]'
	@rm -f $(UNFINISHED) && touch $(INSTALLED)

lint: install  ## Format, lint, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --strict src
	@$(BIN)/lint-imports --no-logo

system-packages:
	@tests/install_system_packages.sh

test: lint system-packages  ## Everything CI checks: lint and the tests, slow ones too (ARGS="-k ditto" for some)
	@$(BIN)/pytest -q -n auto --dist worksteal -m "not alone" $(ARGS)
	@$(BIN)/pytest -q -m alone $(ARGS) || test $$? -eq 5  # 5: none was chosen

check: lint  ## The same with the fast tests only, under two minutes
	@$(BIN)/pytest -q -n auto -m "not slow and not alone" $(ARGS)

format: install  ## Format the code and mend what the linter can
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

clean:  ## Remove .venv, builds and caches; results stay
	@rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
