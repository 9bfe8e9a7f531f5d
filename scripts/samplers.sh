#!/usr/bin/env bash
# The frontier of every sampler: a report of each, at several numbers of network calls and temperatures.
#
#     scripts/samplers.sh RUN JUDGE OUT [SAMPLER …]
#
# RUN is a diffusion model, JUDGE what `cdcd evaluate --judge` takes. A report that is there is not made
# again. CALLS, TEMPERATURES and EVALUATION_OPTIONS change what is measured, such as
#     EVALUATION_OPTIONS="--split valid --num-samples 1024 --batch-size 1024" scripts/samplers.sh …
set -euo pipefail
run=$1 judge=$2 out=$3
shift 3
cdcd=${CDCD:-cdcd}
calls=${CALLS:-8 20 50 200}
temperatures=${TEMPERATURES:-0.7,0.8,0.9,0.95,1.0}
read -ra more <<<"${EVALUATION_OPTIONS:-}"
declare -A options=(
  [euler]="--solver euler"
  [euler_exact]="--solver euler --exact-temperature true"
  [euler_stated]="--solver euler --stated-noise-scale 1.05"
  [heun]="--solver heun"
  [dpm]="--solver dpm++"
  [ancestral_0.5]="--solver ancestral --eta 0.5"
  [ancestral_1]="--solver ancestral --eta 1"
  [ancestral_2]="--solver ancestral --eta 2"
  [ancestral_4]="--solver ancestral --eta 4"
  [ancestral_4_guided]="--solver ancestral --eta 4 --guidance-scale 1.5"
  [ancestral_4_stated]="--solver ancestral --eta 4 --stated-noise-scale 1.05"
  [ancestral_4_between]="--solver ancestral --eta 4 --noise-above ${NOISE_ABOVE:-2} --noise-below ${NOISE_BELOW:-20}"
  [all_noise]="--solver ancestral --eta 1000"
  [bridge]="--solver bridge"
)
chosen=("$@")
[ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(printf '%s\n' "${!options[@]}" | sort)

for name in "${chosen[@]}"; do
  read -ra own <<<"${options[$name]}"
  for count in $calls; do
    folder=$out/${name}_$count
    [ -e "$folder/report.json" ] && continue
    # The last call is the final prediction; a step of Heun's makes two.
    steps=$((count - 1))
    [ "$name" = heun ] && steps=$(((count - 1) / 2))
    $cdcd evaluate "$run" --judge "$judge" "${own[@]}" --num-steps "$steps" \
      --sweep score-temperature="$temperatures" --out "$folder" "${more[@]}"
  done
done
