# make demo   pre-trains two small networks on embedded real images and compares them (one to three minutes on two cores)
# make test   runs the tests
# make torture  runs every test with hostile files and faults, draws thousands more (hours), and writes the count into benchmarks/
# make lint   checks style, types and wording, and that the documentation builds without a broken link
# make docs   builds the documentation into build/site
# make dist   builds the sdist, and from it the wheel, into dist/
# make docker builds the image of Dockerfile and trains in it for an epoch; INDEX=ADDRESS takes torch from there
# make setup  only installs: a virtual environment in .venv, uv inside it, then this package with the versions of constraints.txt
#
# Needs Python 3.11 or newer. Another interpreter than python3:  make PYTHON=python3.12 demo

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt

.PHONY: demo setup setup-dev setup-docs test torture lint types style docs dist docker format constraints clean
.DELETE_ON_ERROR:

demo: $(VENV)/.setup
	$(BIN)/hexa demo

# One process for each core. Each begins with its part of the tests in their order, so that tests of a file share what is
# expensive; a process that has finished takes over half of what another has left.
test: setup-dev
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

# Only from a commit, which is what the count is of. A second count of a day replaces the first; what fails ends it.
TORTURE := benchmarks/$(shell date +%F)-torture.json
torture: setup-dev
	@test -z "$$(git status --porcelain --untracked-files=no)" || { echo 'make: commit first, the count names a commit' >&2; exit 1; }
	@mkdir -p build
	HEXA_TORTURE_REPORT=build/torture.json $(BIN)/python -m pytest tests/torture -m '' --numprocesses logical --maxprocesses 4 --dist loadfile
	$(BIN)/python benchmarks/fuzz.py --result build/torture.json
	mv build/torture.json $(TORTURE) # not before: the count names a commit without changes
	@echo '$(TORTURE)'

# The long steps, types and the documentation, run at the same time.
lint: setup-dev setup-docs
	@$(MAKE) --no-print-directory --jobs 2 types style docs

types: setup-dev
	$(BIN)/mypy

style: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.wording

# NO_MKDOCS_2_WARNING: an advertisement for what will follow mkdocs
docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'build/site/index.html'

# The versions of build tools are those of constraints.txt.
dist: $(BIN)/uv
	$(BIN)/uv build --quiet --clear --build-constraints constraints.txt --out-dir dist

docker:
	docker build --build-arg INDEX=$(INDEX) --tag hexa .
	docker run --rm hexa pretrain digits-moco-v2 --epochs 1

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.setup
	@echo 'now: source $(BIN)/activate'
setup-dev: $(VENV)/.setup-dev
setup-docs: $(VENV)/.setup-docs

# The stamps make a second `make` start at once; a changed dependency list installs again.
# What commands import is compiled here once: a start takes seconds less, also where Python may not write bytecode itself.
WARM := import importlib, pkgutil, hexa, hexa_paper; \
	own = [found.name for package in (hexa, hexa_paper) for found in pkgutil.walk_packages(package.__path__, \
		package.__name__ + ".") if found.name != "hexa.__main__"]; \
	[importlib.import_module(name) for name in [*own, "torch._dynamo", "sklearn.datasets", "sklearn.svm", \
		"matplotlib.pyplot", "timm", "torch.utils.tensorboard"]]

$(VENV)/.setup: pyproject.toml constraints.txt $(BIN)/uv
	@$(BIN)/uv pip uninstall --quiet --python $(BIN)/python hexa # what this package was called before
	@echo 'installing into $(VENV), some 6 GB with the parts of PyTorch for NVIDIA GPUs: minutes, if they are downloaded'
	$(INSTALL) --editable .
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -c '$(WARM)'
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	$(INSTALL) --editable '.[dev,detection,hf,onnx]'
	@touch $@

$(VENV)/.setup-docs: $(VENV)/.setup
	$(INSTALL) --editable '.[docs]'
	@touch $@

# Some systems ship Python without ensurepip, so that a virtual environment cannot get its own pip; the system's pip serves then.
$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed (none found); name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: Python 3.11 or newer is needed; $(PYTHON) is older. Name another with make PYTHON=/path/to/python3" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		$(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet --constraint constraints.txt uv; \
	else \
		echo "make: $(PYTHON) has neither ensurepip nor pip, so nothing can be installed; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; \
	fi

# Pins every dependency, dev ones included, for all supported Pythons and systems: names and versions only.
constraints:
	printf '%s\n' '# Tested versions of everything that may be installed; written by `make constraints`.' > $(VENV)/constraints.new
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links pyproject.toml >> $(VENV)/constraints.new
	printf 'uv==%s\n' "$$($(BIN)/uv --version | cut -d ' ' -f 2)" >> $(VENV)/constraints.new
	mv $(VENV)/constraints.new constraints.txt

clean:
	rm -rf $(VENV) build dist runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
