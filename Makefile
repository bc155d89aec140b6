# Everyday commands. `make setup` once, then `make check` before a commit.
PYTHON ?= python3

.PHONY: help setup format lint test e2e nightly check ci

help:  ## list the commands
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/'

setup:  ## install the package and the developer tools, and the commit hook
	$(PYTHON) -m pip install -e '.[dev]'
	pre-commit install

format:  ## format the code and fix what ruff can fix
	ruff format .
	ruff check --fix .

lint:  ## check format, style, types and the import contract
	ruff format --check .
	ruff check .
	mypy
	lint-imports

test:  ## unit tests, minutes
	pytest

e2e:  ## whole commands with a compiler, a browser and PostgreSQL
	pytest -m e2e

nightly:  ## faults, fuzzing, documentation, other processors, large networks
	pytest -m nightly

check: lint test  ## what a commit must pass

ci:  ## everything CI runs, in a new virtual environment
	bash .ci/run
