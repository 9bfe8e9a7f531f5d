#!/usr/bin/env bash
# Image captions: a diffusion model and an autoregressive one of the same size, each beside a judge.
#
#     scripts/captions.sh DATA OUT [STAGE …]
#
# DATA holds captions_train.en.txt.xz and captions_val.en.txt.xz of multi30k. A stage that is done is not
# done again, so an interrupted script can be run again. With one H200 the whole takes about ten minutes.
#   prepare       both data sets: half of the documents kept for the judge, and all of them for training
#   disjoint      judge, baseline and diffusion model; no document is shared between judge and the others
#   same_text     judge and diffusion model both on all documents, for comparison with other trials
#   evaluate      reports in OUT/reports
set -euo pipefail
data=$1 out=$2
shift 2
stages=${*:-prepare disjoint same_text evaluate}
cdcd=${CDCD:-cdcd}
# For trying the script out: options that come last.
read -ra more_training <<<"${TRAINING_OPTIONS:-}"
read -ra more_evaluation <<<"${EVALUATION_OPTIONS:-}"
size=(--preset small --data.length 32 --network.num-blocks 8 --network.width 512 --network.num-heads 8
  --embedding.dim 128 --embedding.init-scale 0.05 --training.batch-size 512 --training.optimiser muon
  --training.learning-rate 2e-3 --training.warmup-steps 100 --training.valid-sequences 1024
  --training.checkpoint-every 0 --training.compile "${COMPILE:-graphs}" --training.average-decay 0.998)
autoregressive=(--model autoregressive --training.steps 1500 --training.decay-steps 500
  --training.validate-every 100 --training.patience 3 --training.average-decay 0.99)

train() { # NAME DATA OPTION …
  local name=$1 set=$2
  shift 2
  [ -e "$out/$name/done" ] && return
  rm -rf "${out:?}/$name"
  $cdcd train "${size[@]}" --data "$out/$set" --out "$out/$name" "$@" "${more_training[@]}" | tee "$out/$name.log"
  touch "$out/$name/done"
}

prepare() {
  mkdir -p "$out/reports"
  local common=(--source "$data/captions_train.en.txt.xz" --valid-source "$data/captions_val.en.txt.xz"
    --test-share 0.03 --group-size 5 --vocab-size 4096)
  [ -e "$out/half" ] || $cdcd data prepare "${common[@]}" --judge-share 0.48 --out "$out/half"
  [ -e "$out/all" ] || $cdcd data prepare "${common[@]}" --tokenizer "$out/half" --out "$out/all"
}

disjoint() {
  train judge half --data.split judge "${autoregressive[@]}"
  train baseline half "${autoregressive[@]}"
  train diffusion half --training.steps "${STEPS:-4500}" --training.decay-steps 1500 --training.validate-every 500
}

same_text() {
  train judge_all all "${autoregressive[@]}" --training.patience 0 --training.validate-every 500
  train diffusion_all all --training.steps "${STEPS_ALL:-6500}" --training.decay-steps 2000 \
    --training.validate-every 500
}

evaluate() {
  local common=(--judge "$out/judge" --data "$out/half" --split test --batch-size 1024)
  $cdcd evaluate "$out/diffusion" "${common[@]}" --baseline "$out/baseline" --num-seeds 2 --num-samples 1024 \
    --sweep score-temperature=1.05,1.0,0.975,0.95,0.925,0.9 --controls true --out "$out/reports/captions" "${more_evaluation[@]}"
  common=(--judge "$out/judge_all" --data "$out/all" --split test --batch-size 1024 --num-samples 1024
    --num-seeds 2 --mauve false)
  $cdcd evaluate "$out/diffusion_all" "${common[@]}" --out "$out/reports/captions_same_text" \
    --sweep score-temperature=1.1,1.05,1.0,0.975,0.95,0.9 "${more_evaluation[@]}"
  for sweep in guidance-scale=2,4 self-conditioning=false warp=false initial-noise-scale=0.8,0.9 num-steps=20,50; do
    $cdcd evaluate "$out/diffusion_all" "${common[@]}" --matches false --sweep "$sweep" \
      --out "$out/reports/captions_same_text_${sweep%%=*}" "${more_evaluation[@]}" &
  done
  wait
}

for stage in $stages; do "$stage"; done
