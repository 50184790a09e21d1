# The same names as the nox sessions; `make help` lists them. ARGS are passed on: make plan ARGS="--on gpu-01"
.DEFAULT_GOAL := help
PYTHON ?= python3
NOX := .venv/bin/nox
SESSIONS := plan upgrade validate rollback report driver runfile toolkit wheels kernels eagle3 switch pins lab lint tests bench

.PHONY: help test $(SESSIONS)

$(SESSIONS): $(NOX)
	@$(NOX) -s $@ -- $(ARGS)

test: $(NOX)  ## lint, types and all tests of the tool itself
	@$(NOX) -s lint
	@$(NOX) -s tests -- $(ARGS)

help: $(NOX)
	@$(NOX) --list
	@echo 'make test: lint, types and all tests of the tool itself'

# The mark is the lock it was made from: a half-made .venv is made again.
$(NOX): nox.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "want Python 3.10 or newer, got " + sys.version.split()[0])'
	@if command -v uv >/dev/null; then \
	  uv venv --clear --quiet --python $(PYTHON) .venv && uv pip sync --quiet --require-hashes --python .venv/bin/python nox.lock; \
	else \
	  $(PYTHON) -m venv --clear .venv && .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r nox.lock; \
	fi
	@touch $@
