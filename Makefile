# All targets of the project. Each creates .venv first, and updates it when the requirements change.
# PYTEST_ARGS, SWEEP_ARGS, SANITIZE_ARGS and BENCH_ARGS are passed on, as in: make test PYTEST_ARGS="-k digits"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTHON_3_12 = $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) python3.12)
BIN := .venv/bin
READY := .venv/.ready
CLIENTS := .venv-clients
CPP = $(shell find torch_xla/_engine/recorder/csrc torch_xla/_engine/cpu_backend/csrc torch_xla_autoload/csrc tests/tools/sanitizer_faults -name '*.cpp' -o -name '*.h')

# Containers often set it, and each interpreter that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test smoke test-isa test-long test-sanitize test-torch test-versions test-newest test-clients test-clients-sample test-client-suites test-ops test-targets test-plugin test-gpu wheel \
    test-wheel test-debian lint fix bench docs docs-check notebooks clean

help:
	@echo "make demo      train a CNN on handwritten digits on xla:0"
	@echo "make test      all tests"
	@echo "make smoke     a 30-second smoke test"
	@echo "make test-torch TORCH=2.15.0 [JAX=0.12.0.1] [PY=python3.13]  all tests with another torch, jax or Python"
	@echo "make test-versions [CELLS=2.15-0.12-3.13]  the tests with each supported torch, jax and Python (hours)"
	@echo "make test-clients  accelerate, transformers, Lightning and others, unmodified (installs them)"
	@echo "make test-clients-sample  a few of these tests of each library"
	@echo "make test-client-suites  the test suites of accelerate and ignite, on xla (slow)"
	@echo "make test-isa  numerical tests with other vector ISAs and thread counts (slow)"
	@echo "make test-long random programs, training and a model zoo with default XLA flags (slow; before a release)"
	@echo "make test-sanitize  threading and lifetime tests under ASan/UBSan and TSan (slow)"
	@echo "make test-ops  compare every torch operator with the CPU (slow)"
	@echo "make test-targets  cross-compile every lowering rule for TPU and GPU targets (slow)"
	@echo "make test-plugin  the core tests on a foreign PJRT plugin (needs Python 3.12, or PLUGIN_PYTHON)"
	@echo "make test-gpu  the operator sample, training and GPU tests on an NVIDIA GPU (needs jax's CUDA plugin)"
	@echo "make wheel     one wheel with compiled libraries for torch 2.11 to 2.15, checked without a compiler (slow)"
	@echo "make test-wheel  install that wheel on clean Debian 12 and 13 without a compiler, with five torch releases (needs root; slow)"
	@echo "make test-debian  run the README's commands on clean Debian 12 and 13, as a non-root user (needs root; slow)"
	@echo "make lint      check formatting, lint, types, import layers, names"
	@echo "make fix       auto-fix formatting and lint"
	@echo "make bench     print the benchmark tables as markdown"
	@echo "make docs      build the documentation site in site/"
	@echo "make docs-check  open each page in headless Chromium: check links, pictures, errors"
	@echo "make notebooks run the notebooks and store their outputs"
	@echo "make clean     remove .venv and everything generated"

setup: $(READY)

PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off

$(READY): requirements-dev.txt pyproject.toml
	@$(PYTHON) scripts/phase.py "1/3 create .venv" $(PYTHON) -m venv .venv
	@$(PYTHON) scripts/phase.py "2/3 install torch, jax and tools" $(PIP) --requirement requirements-dev.txt
	@$(PYTHON) scripts/phase.py "3/3 install torch_xla" $(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/train_digits.py --check

test: $(READY)
	$(BIN)/python -m pytest -q -n auto --dist worksteal $(PYTEST_ARGS)

smoke: $(READY)
	$(BIN)/python -m pytest -q tests/integration/test_smoke.py $(PYTEST_ARGS)

# In a separate environment: most releases install 5 GB of CUDA libraries. The result is written to docs/reference/versions.md.
# CORE=1: only the tests that depend most on torch.
test-torch:
	$(if $(TORCH),,$(error set TORCH, e.g. make test-torch TORCH=2.15.0 PY=python3.13))
	$(PYTHON) -m tests.tools.torch_versions $(TORCH) --python $(or $(PY),$(PYTHON)) $(if $(JAX),--jax $(JAX)) $(if $(CORE),--core) -- -n auto $(PYTEST_ARGS)

# Each supported combination of torch, jax and Python, one after another. CELLS: only these, as in 2.15-0.12-3.13.
test-versions:
	$(PYTHON) -m tests.tools.version_matrix $(if $(CELLS),--cells $(CELLS)) -- -n auto $(PYTEST_ARGS)

# As users install it, unpinned, on the newest installed Python.
test-newest:
	scripts/ci_newest.sh

# In a separate environment, so that no library changes the torch version of the other tests.
test-clients: $(CLIENTS)/.ready
	$(CLIENTS)/bin/python -m pytest -q -n auto --dist worksteal tests/clients $(PYTEST_ARGS)

test-clients-sample: $(CLIENTS)/.ready
	$(CLIENTS)/bin/python -m pytest -q -n auto --dist worksteal -m sample tests/clients $(PYTEST_ARGS)

test-client-suites: $(CLIENTS)/.ready
	$(CLIENTS)/bin/python -m tests.clients.suites $(SUITE_ARGS)

$(CLIENTS)/.ready: requirements-dev.txt tests/clients/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --requirement requirements-dev.txt
	$(CLIENTS)/bin/python -m pip install --quiet --no-deps --requirement tests/clients/requirements.txt
	$(CLIENTS)/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

test-isa: $(READY)
	$(BIN)/python -m tests.tools.vector_isa -n auto --dist worksteal $(PYTEST_ARGS)

# Without the flags of tests/support/fast_compile_flags.py: XLA optimizes programs as it does for users. Runs all 70,000 random
# programs, the rules with XLA's default emitters, an interrupt at every event of a step, ten minutes of interrupts at random
# moments, captured and uncaptured training of five models with four optimizers over 200 steps, and some 190 models of
# transformers and timm in the environment of the client tests.
test-long: test-sanitize $(CLIENTS)/.ready
	XLA_FLAGS= $(BIN)/python -m pytest -q -n auto --dist worksteal -m "" \
	    tests/fuzz/test_random_programs.py tests/fuzz/test_cross_feature.py tests/integration/test_training_parity.py tests/parallel/test_collectives.py \
	    tests/execution/test_compile_policy.py tests/capture/test_compiled_train_step.py tests/recorder/test_promotion.py tests/execution/test_exit_order.py \
	    tests/parallel/test_large_models.py tests/parallel/test_sharded.py tests/parallel/test_shared_compilation.py tests/parallel/test_elastic.py \
	    tests/integration/test_examples.py::test_llama_killed_at_random_steps $(PYTEST_ARGS)
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -q -n auto --dist worksteal \
	    tests/lowering tests/ops $(PYTEST_ARGS)
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "" \
	    tests/lowering/test_dtype_corners.py tests/compilation/test_foreach_fusion.py $(PYTEST_ARGS)
	$(BIN)/python -m tests.fuzz.interrupts --seconds 600
	$(BIN)/python -m tests.fuzz.replays --steps 200
	$(CLIENTS)/bin/python -m pytest -q -n auto --dist worksteal -m "" tests/clients/test_zoo.py $(PYTEST_ARGS)

# AddressSanitizer with UBSan, then ThreadSanitizer: each builds a separate recorder on first use (minutes).
test-sanitize: $(READY)
	$(BIN)/python -m tests.tools.sanitize $(SANITIZE_ARGS)

# pytest exits with 5 if no test has the mark.
test-ops: $(READY)
	$(BIN)/python -m tests.ops.sweep --output docs/reference/op_coverage.md --invalid-calls docs/reference/op_coverage.md $(SWEEP_ARGS)
	$(BIN)/python -m pytest -m sweep $(PYTEST_ARGS) || [ $$? -eq 5 ]

# On a PJRT plugin that jax knows nothing about, in a separate environment: the plugin needs jax 0.11.2, and that Python 3.12.
test-plugin: .venv-plugin/.ready
	.venv-plugin/bin/python -m tests.tools.foreign_plugin.run $(PYTEST_ARGS)

test-gpu:
	$(PYTHON) -m tests.tools.gpu_tests $(PYTEST_ARGS)

.venv-plugin/.ready: tests/tools/foreign_plugin/requirements.txt
	$(or $(PLUGIN_PYTHON),$(PYTHON_3_12)) -m venv .venv-plugin
	.venv-plugin/bin/python -m pip install --quiet --requirement tests/tools/foreign_plugin/requirements.txt
	@touch $@

# Installs libtpu and jax's CUDA plugin in .venv. TARGETS overrides the targets.
test-targets: $(READY)
	$(BIN)/python -m pip install --quiet ".[tpu,cuda]" --requirement requirements-dev.txt
	$(BIN)/python -m tests.tools.compile_for_targets $(or $(TARGETS),v5e h100) --output docs/reference/op_coverage.md $(PYTEST_ARGS)

# In folders made by debootstrap, which must be installed, as root. DEBIAN: bookworm or trixie only; DEBIAN_ARGS: --quick
test-debian:
	$(PYTHON) -m tests.tools.clean_debian $(DEBIAN) $(DEBIAN_ARGS)

# Downloads each torch once for its headers (5 GB). WHEEL_ARGS: --torch 2.13.0 --python python3.12
# CHECK_PYTHONS: interpreters of environments with torch and jax, whose first step is timed without a compiler.
wheel: $(READY)
	$(BIN)/python scripts/build_wheel.py $(WHEEL_ARGS)
	$(BIN)/python scripts/check_wheel.py $(abspath $(or $(CHECK_PYTHONS),$(wildcard $(BIN)/python .venv-torch-*/bin/python)))

# Needs debootstrap and root, as make test-debian. DEBIAN: bookworm or trixie only; WHEEL_ARGS: --torch 2.13.0
test-wheel:
	$(PYTHON) -m tests.tools.wheel_on_debian $(DEBIAN) $(WHEEL_ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/lint.py
	$(if $(CPP),@$(BIN)/clang-format --dry-run -Werror $(CPP))

fix: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(if $(CPP),@$(BIN)/clang-format -i $(CPP))

bench: $(READY)
	$(BIN)/python -m benchmarks.record $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.step $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.first
	$(BIN)/python -m benchmarks.chains
	$(BIN)/python -m benchmarks.launching
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.calls $(if $(findstring quick,$(BENCH_ARGS)),--quick)
	$(BIN)/python -m benchmarks.compiled_step $(if $(findstring quick,$(BENCH_ARGS)),--quick)
	$(BIN)/python -m benchmarks.layers $(if $(findstring quick,$(BENCH_ARGS)),--quick)
	$(BIN)/python -m benchmarks.replicas $(if $(findstring quick,$(BENCH_ARGS)),--quick)
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.watching $(BENCH_ARGS)

DOCS := .venv-docs/bin

.venv-docs/.ready: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python -m pip install --quiet --requirement requirements-docs.txt
	@touch $@

# Warnings are errors. mkdocs reads the package and does not import it.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict --quiet

docs-check: docs
	$(DOCS)/python scripts/docs/check.py

# Uses .venv and .venv-docs; notebook 04 uses the libraries of make test-clients.
notebooks: $(READY) $(CLIENTS)/.ready .venv-docs/.ready
	$(DOCS)/python scripts/docs/notebooks.py --packages .venv $(or $(NOTEBOOKS),$(filter-out notebooks/04%,$(wildcard notebooks/*.ipynb)))
	$(if $(NOTEBOOKS),,$(DOCS)/python scripts/docs/notebooks.py --packages $(CLIENTS) $(wildcard notebooks/04*.ipynb))
	$(DOCS)/python scripts/docs/interrupted.py --packages .venv

clean:
	rm -rf .venv .venv-docs .venv-torch-* .venv-clients .venv-plugin build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
