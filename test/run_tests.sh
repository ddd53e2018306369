#!/usr/bin/env bash
# All tests: `make test`. Arguments go to pytest, as in: test/run_tests.sh -k digits
set -euo pipefail
cd "$(dirname "$0")/.."
exec make test PYTEST_ARGS="$*"
