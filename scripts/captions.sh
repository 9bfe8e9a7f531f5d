#!/usr/bin/env bash
# Image captions: a diffusion model and an autoregressive one of the same size, beside a judge that shares
# no document with them.
#
#     scripts/captions.sh DATA OUT [STAGE …]
#
# DATA holds captions_train.en.txt.xz and captions_val.en.txt.xz of multi30k, and optionally a folder
# `tokenizer` to take over. Stages: prepare judge baseline diffusion evaluate. A stage that is done is not
# done again, and one that was interrupted goes on. On one H200 the whole takes about five minutes.
set -euo pipefail
data=$1 out=$2
shift 2
stages=${*:-prepare judge baseline diffusion evaluate}
cdcd=${CDCD:-cdcd}
# For trying the script out: options that come last.
read -ra more_training <<<"${TRAINING_OPTIONS:-}"
read -ra more_evaluation <<<"${EVALUATION_OPTIONS:-}"
size=(--preset small --data "$out/data" --data.length 32 --network.num-blocks 8 --network.width 512 --network.num-heads 8
  --training.batch-size 512 --training.optimiser muon
  --training.learning-rate 2e-3 --training.warmup-steps 100 --training.valid-sequences 1024
  --training.checkpoint-every 0 --training.compile "${COMPILE:-graphs}" --training.average-decay 0.998)
autoregressive=(--model autoregressive --training.steps 1500 --training.decay-steps 500
  --training.validate-every 100 --training.patience 3 --training.average-decay 0.99)

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
  [ -e "$out/data/dataset.json" ] || $cdcd data prepare --source "$data/captions_train.en.txt.xz" \
    --valid-source "$data/captions_val.en.txt.xz" --test-share 0.03 --judge-share 0.48 --group-size 5 \
    --vocab-size 4096 --tokenizer "$tokenizer" --out "$out/data"
}

judge() { train judge --data.split judge "${autoregressive[@]}"; }

baseline() { train baseline "${autoregressive[@]}"; }

diffusion() {
  train diffusion --training.steps "${STEPS:-2500}" --training.decay-steps 1500 --training.validate-every 500 \
    --embedding.dim 128 --embedding.init-scale 0.05
}

evaluate() {
  local common=("$out/diffusion" --judge "$out/judge" --split test --batch-size 1024)
  $cdcd evaluate "${common[@]}" --baseline "$out/baseline" --controls true --out "$out/reports/captions" \
    --sweep score-temperature=1.05,1.0,0.95,0.9 --baseline-sweep nucleus=0.9,0.95,1.0 "${more_evaluation[@]}"
  $cdcd evaluate "${common[@]}" --baseline "$out/baseline" --protocol random --num-samples 2000 --matches false \
    --sweep score-temperature=1.0,0.95 --baseline-sweep nucleus=0.9,1.0 --out "$out/reports/random_prefix" \
    "${more_evaluation[@]}"
  for sweep in guidance-scale=2,4 self-conditioning=false warp=false initial-noise-scale=0.8 num-steps=20,50; do
    $cdcd evaluate "${common[@]}" --mauve false --matches false --sweep "$sweep" \
      --out "$out/reports/${sweep%%=*}" "${more_evaluation[@]}" &
  done
  wait
}

for stage in $stages; do "$stage"; done
