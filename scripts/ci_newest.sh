#!/usr/bin/env bash
# Installs the package as `pip install .` does, unpinned, on the newest Python of this machine (3.12 or later), imports
# it, and runs the smoke tests and the demo there. Torch's packages (about 5 GB) stay in an environment below ~/.cache,
# one for each Python, pyproject.toml and version of this script; PYTHON_NEWEST names another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

find_newest() {
    local found=""
    for candidate in $(compgen -c python3. | grep -E '^python3\.[0-9]+$' | sort -u -t. -k2,2nr) \
        $(ls -d ~/.pyenv/versions/3.*/bin/python 2>/dev/null | sort -rV); do
        # A shim of pyenv may be there without its Python: what counts is what it says of itself.
        "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || continue
        minor=$("$candidate" -c 'import sys; print(sys.version_info[1])')
        found+="$minor $candidate"$'\n'
    done
    printf '%s' "$found" | sort -k1,1nr -s | head -1 | cut -d' ' -f2
}

python=${PYTHON_NEWEST:-$(find_newest)}
if [ -z "$python" ]; then
    echo "=====================================================================================" >&2
    echo "NOT RUN: this machine has no Python newer than 3.11. What pip installs for users of" >&2
    echo "3.12 and later (another jax, another torch) was not tested." >&2
    echo "=====================================================================================" >&2
    exit 0
fi

rm -rf build  # setuptools would install the modules that an older checkout left there
version=$("$python" -c 'import platform; print(platform.python_version())')
key=$(cat pyproject.toml scripts/ci_newest.sh | sha256sum | cut -c1-12)
env=${XDG_CACHE_HOME:-$HOME/.cache}/torch_xla/newest-$version-$key
echo "Python $version, in $env"
# Environments of earlier versions of this script, pyproject.toml or Python: 6 GB each.
for stale in "$(dirname "$env")"/newest-*; do
    [ "$stale" = "$env" ] || rm -rf "$stale"
done
if [ ! -e "$env/.ready" ]; then
    rm -rf "$env"
    "$python" -m venv "$env"
    "$env/bin/python" -m pip install --quiet . pytest pytest-xdist hypothesis expecttest scikit-learn matplotlib
    touch "$env/.ready"
fi
# The package itself each time: what is in the checkout is what is tested.
"$env/bin/python" -m pip install --quiet --no-deps --force-reinstall .

# From another folder, so that the installed package is imported and not the checkout.
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
(cd "$outside" && "$env/bin/python" -W error -c \
    'import jax, torch, torch_xla; print("torch", torch.__version__, "jax", jax.__version__, torch_xla.__file__)')
"$env/bin/python" -m pytest -q tests/integration/test_smoke.py
"$env/bin/python" examples/train_digits.py --check
