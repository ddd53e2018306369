#!/usr/bin/env bash
# Builds the wheel of torch_xla from this checkout into dist/, and checks it: it is installed beside the torch and jax
# of $PYTHON (default: python3) in a separate folder, and python -m torch_xla.doctor computes a tensor with it.
#
#   scripts/build_torch_wheels.sh                   one wheel for every torch; the first import compiles the recorder
#   scripts/build_torch_wheels.sh --with-recorder   the recorder is compiled in, for the torch of $PYTHON: needs no
#                                                   compiler where it is installed; with another torch it is compiled
#
# torch itself is not built: the wheel goes with the torch that is there.
set -euo pipefail

python="${PYTHON:-python3}"
with_recorder=
for word in "$@"; do
    case "$word" in
    --with-recorder) with_recorder=1 ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        [[ "$word" == --help ]] && exit 0
        exit 2
        ;;
    esac
done

root="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# In a copy: setuptools leaves its files beside the sources, and a recorder that is compiled in stays out of the checkout.
mkdir "$work/tree" "$work/dist"
cp -r "$root/torch_xla" "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$work/tree"
rm -rf "$work/tree/torch_xla/_engine/recorder/builds"

options=()
if [[ -n "$with_recorder" ]]; then
    (cd "$work/tree" && PYTHONPATH="$work/tree" "$python" -m torch_xla.build --into-package)
    # Any Python 3 may install it: a build that does not fit is not used.
    options=("--config-settings=--build-option=--plat-name=linux_$(uname -m)")
fi
"$python" -m pip wheel --quiet --no-deps "${options[@]}" --wheel-dir "$work/dist" "$work/tree"

"$python" -m pip install --quiet --no-deps --target "$work/site" "$work/dist"/*.whl
cd "$work"
if [[ -n "$with_recorder" ]]; then
    # Neither a compiler nor a cache folder may be needed.
    export CXX="$work/no-compiler" TORCH_XLA_CACHE_DIR="$work/nothing"
fi
PYTHONPATH="$work/site" "$python" -m torch_xla.doctor
if [[ -e "$work/nothing" ]]; then
    echo "build_torch_wheels: the wheel brought a recorder, and another one was made" >&2
    exit 1
fi

mkdir -p "$root/dist"
cp "$work/dist"/*.whl "$root/dist"
for wheel in "$work/dist"/*.whl; do
    echo "dist/$(basename "$wheel")"
done
