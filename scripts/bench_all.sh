#!/usr/bin/env bash
# All benchmarks of this machine, filed as JSON.
#
#     scripts/bench_all.sh OUT [NAME …]
#
# NAMEs are shapes of `cdcd bench` (default: demo on a CPU, A B C on a GPU). On a CPU, close other programs
# first: two threads that share their cores with anything else measure the other programs.
set -euo pipefail
out=$1
shift
cdcd=${CDCD:-cdcd}
# Options that come last, to try the script out.
read -ra more <<<"${BENCH_OPTIONS:-}"
mkdir -p "$out"
kind=cpu shapes=demo
if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  kind=gpu shapes="A B C"
fi
for shape in ${*:-$shapes}; do
  "$cdcd" bench train --shape "$shape" --out "$out/${kind}_$shape.json" "${more[@]}"
  "$cdcd" bench sample --shape "$shape" --out "$out/${kind}_${shape}_sample.json" "${more[@]}"
done
