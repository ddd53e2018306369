#!/bin/sh
# The steps of docker/Dockerfile, for any Debian or Ubuntu with Python 3.11 or later.
#
#   steps.sh system                          as root: what apt brings, and the user named user
#   steps.sh install EXTRAS TORCH PIP_ARGS   as that user, in a checkout: into ~/venv
set -eu

case "$1" in
system)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -qy --no-install-recommends ca-certificates g++ git make python3 python3-dev python3-venv
    rm -rf /var/lib/apt/lists/*
    useradd --create-home user
    ;;
install)
    python3 -m venv "$HOME/venv"
    pip="$HOME/venv/bin/pip"
    # shellcheck disable=SC2086  # several words
    "$pip" install --no-cache-dir $4 "$3"
    "$pip" install --no-cache-dir ".${2:+[$2]}" scikit-learn matplotlib tqdm # the last three: examples
    cd /                                                                     # the installed package, not the checkout
    "$HOME/venv/bin/python" -m torch_xla.build
    ;;
*)
    echo "steps.sh: system or install, not $1" >&2
    exit 2
    ;;
esac
