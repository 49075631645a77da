#!/usr/bin/env bash
# The benchmark suite for a GPU: worlds, training over environments and devices, and lanes. Takes at most seven minutes.
#
#   benchmarks/gpu.sh [--out DIR] [--config FILE] [--smoke]
#
# FILE says what to train. DIR/bench.json (runs/bench-gpu/ unless given) is written anew after each case. --smoke runs tiny cases
# on the CPU, to show that everything works, in less than two minutes. Packages that are missing are taken from wheels/, if there
# is such a directory.
set -euo pipefail

out=$PWD/runs/bench-gpu config= smoke=
while (($#)); do
  case $1 in
    --out) out=$(realpath -m "${2:?--out: expected a directory}"); shift 2 ;;
    --config) config=$(realpath "${2:?--config: expected a file}"); shift 2 ;;
    --smoke) smoke=yes; shift ;;
    *) sed -n '2,8s/^# \?//p' "$0" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

if [ -d wheels ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" wheels/*.whl
  PYTHONPATH=$PYTHONPATH:$site
fi

quick=("$python" -m jaxagent.bench quick --out "$out")
if [ $smoke ]; then
  JAX_PLATFORMS=cpu "${quick[@]}" --smoke --config "${config:-configs/ppo_collector.toml}" --repeats 1 --budget-s 60
else  # no case starts after five and a half minutes; one that is still running after seven is lost
  timeout 405 "${quick[@]}" --config "${config:-configs/ppo_doorkey_8x8.toml}" --budget-s 330 || (($? == 124))
fi
echo "$out/bench.json"
