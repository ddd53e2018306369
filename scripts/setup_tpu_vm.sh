#!/usr/bin/env bash
# Makes a Cloud TPU VM, or all those of a pod slice, and installs torch, libtpu and this checkout's torch_xla on each.
#
#   scripts/setup_tpu_vm.sh NAME ZONE [TYPE] [--spot] [--install-only] [--dry-run]
#
# TYPE is an accelerator type: v5litepod-8 (the default; 8 chips of a v5e), v6e-8, v5p-8, v4-8, ...
# --spot: cheaper, may be taken away; --install-only: the VM is there; --dry-run: prints the commands.
# Needs gcloud (logged in, with a project and tpu.googleapis.com enabled). $PROJECT names another project.
# Afterwards:
#   gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --command='~/torch_xla/bin/python -m torch_xla.doctor'
#   python -m torch_xla.distributed.xla_dist --tpu=NAME -- COMMAND         on every machine of a slice
# Not run on Cloud TPU by this project yet: tests check the commands.
set -euo pipefail

words=()
spot=() install_only= dry_run=
for word in "$@"; do
    case "$word" in
    --spot) spot=(--spot) ;;
    --install-only) install_only=1 ;;
    --dry-run) dry_run=1 ;;
    --help | -*)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        [[ "$word" == --help ]] && exit 0
        exit 2
        ;;
    *) words+=("$word") ;;
    esac
done
if ((${#words[@]} < 2 || ${#words[@]} > 3)); then
    "$0" --help >&2
    exit 2
fi
name="${words[0]}" zone="${words[1]}" type="${words[2]:-v5litepod-8}"

# The machine image that goes with a generation of chips.
case "$type" in
v5litepod-*) image=v2-alpha-tpuv5-lite ;;
v5p-*) image=v2-alpha-tpuv5 ;;
v6e-*) image=v2-alpha-tpuv6e ;;
v2-* | v3-* | v4-*) image=tpu-ubuntu2204-base ;;
*)
    echo "setup_tpu_vm: $type is no accelerator type that is known here: v5litepod-N, v6e-N, v5p-N, v4-N, v3-N, v2-N" >&2
    exit 2
    ;;
esac

run() {
    if [[ -n "$dry_run" ]]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

tpu=(gcloud compute tpus tpu-vm)
where=("$name" "--zone=$zone" ${PROJECT:+"--project=$PROJECT"})
if [[ -z "$install_only" ]]; then
    run "${tpu[@]}" create "${where[@]}" "--accelerator-type=$type" "--version=$image" "${spot[@]}"
fi

root="$(cd "$(dirname "$0")/.." && pwd)"
archive="$(mktemp --suffix=.tar.gz)"
trap 'rm -f "$archive"' EXIT
git -C "$root" archive --format=tar.gz --prefix=torch_xla_source/ --output="$archive" HEAD
run "${tpu[@]}" scp "$archive" "$name:torch_xla.tar.gz" "${where[@]:1}" --worker=all

# The images bring an older Python than torch_xla needs.
install='set -e
sudo apt-get update -q
sudo apt-get install -qy g++ python3.11 python3.11-venv python3.11-dev
rm -rf torch_xla_source && tar xzf torch_xla.tar.gz
python3.11 -m venv ~/torch_xla
~/torch_xla/bin/pip install -q "./torch_xla_source[tpu]"
cd /
~/torch_xla/bin/python -m torch_xla.build'
run "${tpu[@]}" ssh "${where[@]}" --worker=all "--command=$install"
