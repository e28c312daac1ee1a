# The README's two commands. Each makes the environment first where it is not there yet.
PYTHON ?= python3.11
VENV ?= .venv
# The release that the tests ran with, first: nothing that comes later chooses another.
TORCH ?= torch==2.13.0
WITHOUT_TORCH := tests/mechanisms tests/privacy tests/secagg tests/settings \
  $(addprefix --ignore tests/mechanisms/,test_embedding_dp.py test_label_dp.py)
BIN := $(VENV)/bin
# Ends with a sentence if PYTHON is missing or too old or new for `requires-python`.
CHECK = @$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
  2>/dev/null || { echo "error: fedveil needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is not one \
of them. Name yours, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test core lint docs wheel mindspore clean

run: $(VENV)/installed
	$(BIN)/fedveil run

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2

# The mathematics alone on another interpreter, without PyTorch, whose builds for it are large.
core: $(VENV)/core-installed
	$(BIN)/python -m pytest -n 2 $(WITHOUT_TORCH)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/mkdocs build --strict  # with --quiet it would count no warning

wheel: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build

$(VENV)/installed: pyproject.toml
	$(CHECK)
	@echo "installing $(TORCH) and fedveil with all its extras into $(VENV): about 2 GB, some minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) --editable '.[all,dev]'
	touch $@

$(VENV)/core-installed: pyproject.toml
	$(CHECK)
	$(PYTHON) -m venv $(VENV)
	$(PIP) pytest pytest-xdist pytest-timeout hypothesis dp-accounting --editable .
	touch $@

# MindSpore Tensors in an environment of their own: 800 MB, and an older NumPy than all else needs.
mindspore: .venv-mindspore/installed
	.venv-mindspore/bin/python tests/mindspore_check.py

.venv-mindspore/installed: pyproject.toml
	$(PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python -m pip install --quiet --disable-pip-version-check \
	  mindspore 'numpy==1.26.*' --editable .
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
