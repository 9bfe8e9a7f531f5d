#!/usr/bin/env bash
# English Wikipedia: a diffusion model and an autoregressive one of the same size, beside a judge that
# never saw their text.
#
#     scripts/enwiki.sh DATA OUT [STAGE …]
#
# DATA holds train.txt.xz and valid.txt.xz of enwiki2015, and optionally a folder `tokenizer` to take over.
# Stages: prepare judge baseline diffusion evaluate. A stage that is done is not done again; a longer run is
# STEPS=100000 scripts/enwiki.sh …, and a run that was interrupted goes on from its last checkpoint.
set -euo pipefail
data=$1 out=$2
shift 2
stages=${*:-prepare judge baseline diffusion evaluate}
cdcd=${CDCD:-cdcd}
# For trying the script out: options that come last.
read -ra more_training <<<"${TRAINING_OPTIONS:-}"
read -ra more_evaluation <<<"${EVALUATION_OPTIONS:-}"
size=(--preset small --data "$out/data" --data.length 64 --network.num-blocks 8 --network.width 512
  --network.num-heads 8 --training.batch-size 1024
  --training.optimiser muon --training.learning-rate 2e-3 --training.warmup-steps 100
  --training.valid-sequences 1024 --training.compile "${COMPILE:-graphs}" --training.average-decay 0.998)
steps=${STEPS:-6000} steps_ar=${STEPS_AR:-2400}
autoregressive=(--model autoregressive --training.steps "$steps_ar" --training.decay-steps $((steps_ar / 3))
  --training.validate-every 200 --training.checkpoint-every 0 --training.patience 3
  --training.average-decay 0.99)

train() { # NAME OPTION …
  local name=$1
  shift
  [ -e "$out/$name/done" ] && return
  $cdcd train --resume auto "${size[@]}" --out "$out/$name" "$@" "${more_training[@]}" | tee -a "$out/$name.log"
  touch "$out/$name/done"
}

prepare() {
  mkdir -p "$out/reports"
  local tokenizer=sentencepiece
  [ -e "$data/tokenizer" ] && tokenizer=$data/tokenizer
  [ -e "$out/data/dataset.json" ] || $cdcd data prepare --source "$data/train.txt.xz" --unit blank-line \
    --valid-source "$data/valid.txt.xz" --test-share 0.04 --judge-share 0.48 --vocab-size 8192 \
    --tokenizer "$tokenizer" --out "$out/data"
}

judge() { train judge --data.split judge "${autoregressive[@]}"; }

baseline() { train baseline "${autoregressive[@]}"; }

diffusion() {
  train diffusion --training.steps "$steps" --training.decay-steps $((steps / 3)) \
    --training.validate-every 1000 --training.checkpoint-every 1000 --embedding.dim 128 \
    --embedding.init-scale 0.05
}

evaluate() {
  local common=(--judge "$out/judge" --baseline "$out/baseline" --split test --batch-size 1024)
  $cdcd evaluate "$out/diffusion" "${common[@]}" --num-seeds 2 --num-samples 1024 --controls true \
    --sweep score-temperature=1.1,1.05,1.0,0.95,0.9 --out "$out/reports/enwiki" "${more_evaluation[@]}"
  $cdcd evaluate "$out/diffusion" "${common[@]}" --protocol random --num-samples 5000 --matches false \
    --sweep score-temperature=1.0,0.95 --baseline-sweep nucleus=0.9,1.0 --out "$out/reports/enwiki_table3" \
    "${more_evaluation[@]}"
}

for stage in $stages; do "$stage"; done
