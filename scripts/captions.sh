#!/usr/bin/env bash
# Image captions: a diffusion model, an autoregressive one and a masked one of the same size, beside a judge
# that shares no document with them.
#
#     scripts/captions.sh DATA OUT [STAGE …]
#
# DATA holds captions_train.en.txt.xz and captions_val.en.txt.xz of multi30k, and optionally a folder
# `tokenizer` to use. Stages: prepare judge baseline diffusion masked evaluate. On one H200 all of them but
# masked take about five minutes.
source "$(dirname "$0")/text_experiment.sh"
size+=(--data.length 32 --training.batch-size 512 --training.checkpoint-every 0)
autoregressive+=(--training.steps 1500 --training.decay-steps 500 --training.validate-every 100)

prepare() {
  prepare_data --source "$data/captions_train.en.txt.xz" --valid-source "$data/captions_val.en.txt.xz" \
    --test-share 0.03 --group-size 5 --vocab-size 4096
}

diffusion() {
  train diffusion --training.steps "${STEPS:-2500}" --training.decay-steps 1500 --training.validate-every 500 \
    --embedding.dim 128 --embedding.init-scale 0.05
}

masked() {
  train masked --model masked --training.steps "${STEPS:-2500}" --training.decay-steps 1500 \
    --training.validate-every 500
}

evaluate() {
  local common=(--judge "$out/judge" --split test --batch-size 1024)
  local three=("$out/diffusion" "$out/masked" --baseline "$out/baseline" "${common[@]}")
  $cdcd evaluate "${three[@]}" --sweep score-temperature=1.05,1.0,0.95,0.9 --sweep temperature=1.0,0.9,0.8 \
    --baseline-sweep nucleus=0.9,0.95,1.0 --out "$out/reports/captions" "${more_evaluation[@]}"
  $cdcd evaluate "${three[@]}" --protocol random --num-samples 2000 --matches false \
    --sweep score-temperature=1.0,0.95 --sweep temperature=1.0,0.9 --baseline-sweep nucleus=0.9,1.0 \
    --out "$out/reports/random_prefix" "${more_evaluation[@]}"
  for sweep in guidance-scale=2,4 self-conditioning=false warp=false initial-noise-scale=0.8 num-steps=20,50; do
    $cdcd evaluate "$out/diffusion" "${common[@]}" --mauve false --matches false --sweep "$sweep" \
      --out "$out/reports/${sweep%%=*}" "${more_evaluation[@]}" &
  done
  wait
  $cdcd evaluate "$out/masked" "${common[@]}" --out "$out/reports/masked" --sweep temperature=1.2,1.0,0.9,0.8 \
    --sweep order=random,confidence --sweep num-steps=8,32 "${more_evaluation[@]}"
}

run_stages
