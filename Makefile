# The README's two commands. Each makes the environment first where it is not there yet.
PYTHON ?= python3.11
VENV ?= .venv
# The release that the tests ran with, first: nothing that comes later chooses another.
TORCH ?= torch==2.13.0
# By default torch brings CUDA: 4.7 GB and eleven minutes. To install the build for CPUs (2.5 GB,
# four minutes): make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
WITHOUT_TORCH := tests/mechanisms tests/privacy tests/secagg tests/settings \
  $(addprefix --ignore tests/mechanisms/,test_embedding_dp.py test_label_dp.py test_tensor_kinds.py)
BIN := $(VENV)/bin
# Ends with a sentence if PYTHON is missing or too old or new for `requires-python`.
CHECK = @$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
  2>/dev/null || { echo "error: fedveil needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is not one \
of them. Name yours, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The suite without the longest tests, of which `.ci/run` runs an eighth every day.
SHORT := -m 'not slow and not long'

.PHONY: run test long core lint docs wheel lock sbom mindspore language clean

run: $(VENV)/installed
	$(BIN)/fedveil run

test: $(VENV)/installed
	@# Four on two cores: many tests wait for processes. Plain asserts save each of the four the
	@# rewriting of every file. What failed runs once more, to show the values.
	$(BIN)/python -m pytest -n 4 --dist worksteal --assert=plain $(SHORT) || \
	  { $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none; exit 1; }

# The tests that `make test` leaves out (tests/long_tests.txt).
long: $(VENV)/installed
	$(BIN)/python -m pytest -n 4 --dist worksteal --assert=plain -m long

# The mathematics alone on another interpreter, without PyTorch, whose builds for it are large.
core: $(VENV)/core-installed
	$(BIN)/python -m pytest -n 2 $(SHORT) $(WITHOUT_TORCH)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/mkdocs build --strict  # with --quiet it would count no warning

wheel: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# Exact versions with hashes: of the core, of a node that trains, and of all extras. PyTorch is left
# out of a node's, because its builds for a CPU have another index: install it first.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --custom-compile-command 'make lock' pyproject.toml
lock: $(VENV)/installed
	$(LOCK) --output-file requirements/core.txt
	echo "torch; python_version < '3'" >$(VENV)/without-torch
	$(LOCK) --extra torch --extra flower --overrides $(VENV)/without-torch \
	  --output-file requirements/node.txt
	echo '$(TORCH)' >$(VENV)/torch
	$(LOCK) --extra all --constraints $(VENV)/torch --output-file requirements/all.txt

# The software bill of materials (CycloneDX) of fedveil with all its extras, from their lock.
sbom: $(VENV)/installed
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/fedveil.cdx.json requirements/all.txt

$(VENV)/installed: pyproject.toml
	$(CHECK)
	@echo "installing $(TORCH) and fedveil with all its extras into $(VENV): 2.5 GB and 4 minutes \
with TORCH_INDEX=https://download.pytorch.org/whl/cpu, else CUDA too: 4.7 GB and 11 minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --editable '.[all,dev]'
	touch $@

$(VENV)/core-installed: pyproject.toml
	$(CHECK)
	$(PYTHON) -m venv $(VENV)
	$(PIP) pytest pytest-xdist pytest-timeout hypothesis dp-accounting numba --editable .
	touch $@

# MindSpore Tensors in an environment of their own: 800 MB, and an older NumPy than all else needs.
mindspore: .venv-mindspore/installed
	.venv-mindspore/bin/python tests/mindspore_check.py

.venv-mindspore/installed: pyproject.toml
	$(PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python -m pip install --quiet --disable-pip-version-check \
	  mindspore 'numpy==1.26.*' --editable .
	touch $@

# Language models with adapters, and the trackers MLflow and Weights & Biases: their packages beside
# all of VENV, which their environment finds by a path file. mlflow-skinny with an SQL library writes
# mlflow's files without 20 more packages, of its server. Flower is installed again for its
# commands, which the slow tests start (SLOW=1 runs those instead of the others).
language: .venv-language/installed
	.venv-language/bin/python -m pytest -n 2 --dist worksteal $(if $(SLOW),-m slow) \
	  tests/pretrained tests/engine/test_trackers.py

.venv-language/installed: $(VENV)/installed
	$(PYTHON) -m venv .venv-language
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  >"$$(.venv-language/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests.pth"
	.venv-language/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[language]' 'mlflow-skinny>=3' sqlalchemy alembic 'wandb>=0.19'
	.venv-language/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --ignore-installed "flwr==$$($(BIN)/python -c 'import flwr; print(flwr.__version__)')"
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
