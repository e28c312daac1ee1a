# The two commands of the README. Each makes the environment first where it is not there yet.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# The exact release first: a range would bring the newest build with gigabytes of GPU libraries.
TORCH ?= torch==2.13.0

.PHONY: run test lint docs wheel clean

run: $(VENV)/installed
	$(BIN)/fedveil run

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(VENV)/installed
	$(BIN)/python -m build

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
