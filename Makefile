# The reader's commands are `make lab`, `make update` and `make test`. Linux and macOS; the README has the same without make.

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

VENV := .venv/bin
# What is no Python at all, or a Python 2, cannot say so itself; any later one reads tools/install.py, which says the rest.
NO_PYTHON = amp_course: $(PYTHON) does not run here as a Python 3. Install Python 3.11 or newer (https://python.org, or your \
system'\''s packages), or name one that you have: make lab PYTHON=python3.12
INSTALL = @[ "$$($(PYTHON) -c 'import sys; print(sys.version_info >= (3, 6))' 2>&1)" = True ] || { echo '$(NO_PYTHON)' >&2; exit 1; }; \
	$(PYTHON) tools/install.py --torch-index "$(TORCH_INDEX)"

.DEFAULT_GOAL := help
.PHONY: help lab update test test-matrix test-classroom test-phrasebook screenshots exercises notebooks book slides lint

help: ## show this list
	@echo 'amp_course: mixed precision training in PyTorch. The commands:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Settings: PYTHON=python3.12, ARGS="--no-browser --port 8890" (lab), ARGS="ruff unit" (test, some parts only),'
	@echo 'TORCH_INDEX=<address> for another build of torch (see the README).'

lab: ## open the course in JupyterLab; installs it the first time
	$(INSTALL)
	@$(VENV)/amp-course lab $(ARGS)

update: ## get the next version of the course; what you changed is kept
	$(INSTALL)
	@$(VENV)/amp-course update

test: ## run every check that needs no GPU
	$(INSTALL) --extra test
	@$(VENV)/python tools/check.py $(ARGS)

test-matrix: ## run the tests on every Python and torch that the course promises and this machine has
	@$(PYTHON) tools/matrix.py --torch-index "$(TORCH_INDEX)" $(ARGS)

test-classroom: ## grade a class of thirty, each with another mistake, and all chapters' own answers
	$(INSTALL) --extra test
	@$(VENV)/python tools/check.py classroom

test-phrasebook: ## run the loops of chapters 08 and 12 in PyTorch, Accelerate, Fabric, Paddle and torchao, and two trainers
	$(INSTALL) --extra test
	@$(VENV)/python tools/phrasebook.py --torch-index "$(TORCH_INDEX)"

screenshots: ## picture every notebook and panel, two widths, light and dark, in tests/browser/screenshots
	$(INSTALL) --extra test
	@OMP_NUM_THREADS=1 $(VENV)/python -m pytest -n 2 --dist worksteal -v -m browser --screenshots tests/browser $(ARGS)

exercises: ## write the answers into solutions/, and make exercises/ from it
	$(INSTALL) --extra test
	@$(VENV)/python -m amp_course.authoring make

notebooks: ## run the notebooks whose stored outputs are out of date (ARGS=--all: every one)
	$(INSTALL) --extra test
	@$(VENV)/python -m amp_course.authoring run $(ARGS)

book: ## make the course a site of static pages, in build/book
	$(INSTALL) --extra test
	@$(VENV)/python tools/book.py $(ARGS)

slides: ## make slides for a talk on each chapter, in build/slides (ARGS="5 loop": some)
	$(INSTALL) --extra test
	@$(VENV)/python tools/slides.py $(ARGS)

lint: ## put the code in order where a tool can, and say what it cannot
	$(INSTALL) --extra test
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .
	@$(VENV)/mypy
