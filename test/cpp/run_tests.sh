#!/usr/bin/env bash
# The C++ core under AddressSanitizer, UBSan and ThreadSanitizer: `make test-sanitize` (long).
set -euo pipefail
cd "$(dirname "$0")/../.."
exec make test-sanitize
