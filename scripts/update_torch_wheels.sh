#!/usr/bin/env bash
# Installs torch_xla from this checkout into the environment of $PYTHON (default: python3), or updates it there; compiles
# the recorder, and says whether a tensor can be computed. Run it again after `git pull`, and after installing another
# torch. A torch that is there and new enough stays; --upgrade takes the newest torch and jax.
#
#   scripts/update_torch_wheels.sh [--upgrade] [tpu] [cuda]
set -euo pipefail

python="${PYTHON:-python3}"
root="$(cd "$(dirname "$0")/.." && pwd)"
extras=()
options=()
for word in "$@"; do
    case "$word" in
    tpu | cuda) extras+=("$word") ;;
    --upgrade) options=(--upgrade --upgrade-strategy eager) ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        [[ "$word" == --help ]] && exit 0
        exit 2
        ;;
    esac
done

names="$(IFS=,; echo "${extras[*]}")"
# The package itself again, whatever its version says: a checkout changes without one. Its dependencies first.
"$python" -m pip install "${options[@]}" "$root${names:+[$names]}"
"$python" -m pip install --quiet --force-reinstall --no-deps "$root"
cd / # the installed package, not the checkout
"$python" -m torch_xla.build
"$python" -m torch_xla.doctor
