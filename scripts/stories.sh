#!/usr/bin/env bash
# A language whose probability is known: stories drawn from a published model, on which a diffusion
# model, a masked one and an autoregressive one of the same size are trained, and judged by the truth.
#
#     scripts/stories.sh DATA OUT [STAGE …]
#
# DATA holds the model of stories (stories15m: *.safetensors and tokenizer.bin). Stages: corpus prepare
# baseline masked diffusion evaluate; `ship` writes models/stories; `judge` trains a judge on other stories, whose error is then known
# (JUDGE=OUT/judge). A short trial is TOKENS=2M STEPS=200 STEPS_AR=100 scripts/stories.sh …
set -euo pipefail
if [ $# -eq 2 ]; then set -- "$@" corpus prepare baseline masked diffusion evaluate; fi
source "$(dirname "$0")/text_experiment.sh"
python=${PYTHON:-python} tokens=${TOKENS:-100M} seed=${SEED:-0} length=${LENGTH:-256}
steps=${STEPS:-20000} steps_ar=${STEPS_AR:-6000} batch=${BATCH:-256}
truth=stories15m:$data
# A story is a sequence; what is longer than one would begin in its middle, where no truth is known.
size+=(--data.length "$length" --data.layout documents --training.batch-size "$batch")
autoregressive+=(--training.steps "$steps_ar" --training.decay-steps $((steps_ar / 3))
  --training.validate-every 200)

corpus() {
  [ -e "$out/corpus/stories.json" ] ||
    $python "$(dirname "$0")/stories_corpus.py" "$data" "$out/corpus" --tokens "$tokens" --seed "$seed"
}

prepare() {
  prepare_data --source "$out/corpus/stories.jsonl" --valid-share 0.01 --test-share 0.02 \
    --judge-share "${JUDGE_SHARE:-0.2}" --vocab-size "${VOCAB_SIZE:-8192}"
}

noisy=(--training.steps "$steps" --training.decay-steps $((steps / 3)) --training.validate-every 1000
  --training.checkpoint-every 1000)

diffusion() {
  local recipe
  read -ra recipe <<<"${DIFFUSION_OPTIONS:-}"
  train diffusion "${noisy[@]}" --embedding.dim 128 --embedding.init-scale 0.05 "${recipe[@]}"
}

masked() { train masked --model masked "${noisy[@]}"; }

evaluate() {
  local common=(--baseline "$out/baseline" --split test --batch-size "$batch" --num-samples "${SAMPLES:-1024}")
  # Where a sequence is not a whole story, only beginnings of stories are judged.
  if [ "$length" -lt 256 ]; then common+=(--sequences documents); fi
  local judge
  for judge in "$truth" ${JUDGE:-}; do
    local name=truth
    if [ "$judge" != "$truth" ]; then name=judge; fi
    local calls
    for calls in ${CALLS:-8 20 50 200}; do
      # The last call is the final prediction.
      $cdcd evaluate "$out/diffusion" "${common[@]}" --judge "$judge" --num-steps "$((calls - 1))" \
        --sweep score-temperature=1.1,1.05,1.0,0.95,0.9,0.85 --out "$out/reports/${name}_$calls" \
        "${more_evaluation[@]}"
      if [ -e "$out/masked/done" ]; then
        $cdcd evaluate "$out/masked" "${common[@]}" --judge "$judge" --num-steps "$calls" \
          --sweep temperature=1.0,0.95,0.9,0.8 --out "$out/reports/masked_${name}_$calls" \
          "${more_evaluation[@]}"
      fi
    done
    $python "$(dirname "$0")/best_settings.py" "$out"/reports/*"${name}"_*/report.json \
      >"$out/reports/best_$name.json"
  done
}

# Writes the model with its card: samples under the truth, nats a token of held-out stories, and of real ones
# (TINYSTORIES: a folder with valid.txt.xz). SET has settings of its samples.
ship() {
  local target=${MODELS:-$here/../models}/stories systems
  local reports=(--report "$out/corpus/stories.json" --report "$out/reports/samples/report.json")
  read -ra settings <<<"${SET:-}"
  local options=(--weights "${WEIGHTS:-int8}" "${settings[@]/#/--set=}")
  systems=("$target")
  if [ -e "$out/masked/done" ]; then systems+=("$out/masked"); fi
  export_model diffusion "$target" "${options[@]}"
  local common=(--split test --data "$out/data" --batch-size "$batch" --num-samples "${SAMPLES:-1024}")
  $cdcd evaluate "${systems[@]}" "${common[@]}" --baseline "$out/baseline" --judge "$truth" --sequences documents \
    --sweep score-temperature=1.0,0.9 --sweep temperature=1.0,0.9 --out "$out/reports/samples" "${more_evaluation[@]}"
  likelihoods "$target" "${systems[@]:1}"
  if [ -n "${TINYSTORIES:-}" ]; then
    [ -e "$out/tinystories/dataset.json" ] ||
      $cdcd data prepare --source "$TINYSTORIES/valid.txt.xz" --unit blank-line --tokenizer "$out/data" \
        --valid-share 0.1 --test-share 0.8 --out "$out/tinystories"
    $cdcd evaluate "${systems[@]}" --likelihood --baseline "$out/baseline" --split test --data "$out/tinystories" \
      --num-samples "${SAMPLES:-1024}" --out "$out/reports/real-tinystories"
    reports+=(--report "$out/reports/real-tinystories/likelihood.json")
  fi
  export_model diffusion "$target" "${options[@]}" --report "$out/reports/held-out/likelihood.json" "${reports[@]}"
}

run_stages
