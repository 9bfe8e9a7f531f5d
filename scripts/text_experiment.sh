# The stages that captions.sh, enwiki.sh, stories.sh and gallery.sh share; each script sets its own options and sources this file.
#
# A stage that is done is not done again, and one that was interrupted goes on. TRAINING_OPTIONS and
# EVALUATION_OPTIONS come last on the command lines, to try a script out.
# shellcheck shell=bash disable=SC2034,SC2154
set -euo pipefail
here=$(dirname "$0")
data=$1 out=$2
shift 2
stages=${*:-prepare judge baseline diffusion masked evaluate}
cdcd=${CDCD:-cdcd}
read -ra more_training <<<"${TRAINING_OPTIONS:-}"
read -ra more_evaluation <<<"${EVALUATION_OPTIONS:-}"
size=(--preset small --data "$out/data" --network.num-blocks 8 --network.width 512 --network.num-heads 8
  --training.optimiser muon --training.learning-rate 2e-3 --training.warmup-steps 100
  --training.valid-sequences 1024 --training.compile "${COMPILE:-graphs}" --training.average-decay 0.998)
autoregressive=(--model autoregressive --training.patience 3 --training.checkpoint-every 0
  --training.average-decay 0.99)

# Measures nats a token of held-out text under the shipped weights, and under those of the run.
likelihoods() { # MODEL OTHER …
  local common=(--likelihood --baseline "$out/baseline" --split test --data "$out/data"
    --num-samples "${SAMPLES:-1024}")
  $cdcd evaluate "$@" "${common[@]}" --out "$out/reports/held-out"
  $cdcd evaluate "$out/diffusion" "${common[@]}" --out "$out/reports/held-out-by-the-run"
}

train() { # NAME OPTION …
  local name=$1 started=$SECONDS code=0
  shift
  [ -e "$out/$name/done" ] && return
  $cdcd train --resume auto "${size[@]}" --out "$out/$name" "$@" "${more_training[@]}" |
    tee -a "$out/$name.log" || code=$?
  # One that is stopped counts too.
  echo $((SECONDS - started)) >>"$out/$name.seconds"
  [ "$code" = 0 ] || exit "$code"
  local machine
  machine=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || true
  echo "one ${machine:-$(uname -m) CPU}, $(awk '{ s += $1 } END { printf "%.1f", s / 60 }' "$out/$name.seconds") minutes" \
    >"$out/$name.machine"
  touch "$out/$name/done"
}

# Writes a model into a folder with its card; facts that no run knows are in models.toml. Where the run is on
# another machine, OUT/packed/NAME takes its place.
export_model() { # NAME FOLDER OPTION …
  local name=$1 folder=$2 source=$out/$1
  shift 2
  [ -e "$source/config.json" ] || source=$out/packed/$name
  $cdcd export "$source" --out "$folder" --facts "$here/models.toml" --machine "$(cat "$out/$name.machine")" \
    --replace "$@"
}

prepare_data() { # OPTION …
  mkdir -p "$out/reports"
  local tokenizer=sentencepiece
  [ -e "$data/tokenizer" ] && tokenizer=$data/tokenizer
  [ -e "$out/data/dataset.json" ] ||
    $cdcd data prepare --judge-share 0.48 --tokenizer "$tokenizer" --out "$out/data" "$@"
}

judge() { train judge --data.split judge "${autoregressive[@]}"; }

baseline() { train baseline "${autoregressive[@]}"; }

run_stages() {
  for stage in $stages; do "$stage"; done
}
