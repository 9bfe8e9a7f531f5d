#!/usr/bin/env bash
# English Wikipedia: a diffusion model, an autoregressive one and a masked one of the same size, beside a judge
# that never saw their text.
#
#     scripts/enwiki.sh DATA OUT [STAGE …]
#
# DATA holds train.txt.xz and valid.txt.xz of enwiki2015, and optionally a folder `tokenizer` to use.
# Stages: prepare judge baseline diffusion masked evaluate; ship writes models/wiki. A longer run, of longer sequences, which ends with
# its best checkpoint, is scripts/enwiki_long.sh.
source "$(dirname "$0")/text_experiment.sh"
steps=${STEPS:-6000} steps_ar=${STEPS_AR:-2400}
length=${LENGTH:-64} batch=${BATCH:-1024}
size+=(--data.length "$length" --training.batch-size "$batch")
autoregressive+=(--training.steps "$steps_ar" --training.decay-steps $((steps_ar / 3))
  --training.validate-every 200)

prepare() {
  prepare_data --source "$data/train.txt.xz" --valid-source "$data/valid.txt.xz" --unit blank-line \
    --test-share 0.04 --vocab-size 8192 --judge-share "${JUDGE_SHARE:-0.48}"
}

diffusion() {
  local recipe
  read -ra recipe <<<"${DIFFUSION_OPTIONS:-}"
  train diffusion --training.steps "$steps" --training.decay-steps $((steps / 3)) \
    --training.validate-every 1000 --training.checkpoint-every 1000 --embedding.dim 128 \
    --embedding.init-scale 0.05 "${recipe[@]}"
}

masked() {
  train masked --model masked --training.steps "$steps" --training.decay-steps $((steps / 3)) \
    --training.validate-every 1000 --training.checkpoint-every 1000
}

evaluate() {
  local common=(--judge "$out/judge" --baseline "$out/baseline" --split test --batch-size 1024)
  $cdcd evaluate "$out/diffusion" "$out/masked" "${common[@]}" --num-samples 1024 \
    --sweep score-temperature=1.1,1.05,1.0,0.95,0.9 --sweep temperature=1.0,0.9,0.8 --out "$out/reports/enwiki" "${more_evaluation[@]}"
  $cdcd evaluate "$out/diffusion" "$out/masked" "${common[@]}" --protocol random --num-samples 5000 \
    --matches false --sweep score-temperature=1.0,0.95 --sweep temperature=1.0,0.9 --baseline-sweep nucleus=0.9,1.0 --out "$out/reports/enwiki_table3" \
    "${more_evaluation[@]}"
  $cdcd evaluate "$out/masked" "${common[@]}" --num-samples 1024 --out "$out/reports/enwiki_masked" \
    --sweep temperature=1.3,1.15,1.0,0.9,0.8 --sweep order=random,confidence --sweep num-steps=8,20,64 \
    "${more_evaluation[@]}"
}

# Writes the model with its card. SET has settings of its samples.
ship() {
  local target=${MODELS:-$here/../models}/wiki
  read -ra settings <<<"${SET:-}"
  local options=(--weights "${WEIGHTS:-int8}" "${settings[@]/#/--set=}")
  export_model diffusion "$target" "${options[@]}"
  $cdcd evaluate "$target" --judge "$out/judge" --baseline "$out/baseline" --split test --data "$out/data" \
    --num-samples "${SAMPLES:-1024}" --sweep score-temperature=1.0,0.95,0.9 --out "$out/reports/samples" \
    "${more_evaluation[@]}"
  likelihoods "$target"
  export_model diffusion "$target" "${options[@]}" --report "$out/reports/samples/report.json" \
    --report "$out/reports/held-out/likelihood.json"
}

run_stages
