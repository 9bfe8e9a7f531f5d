#!/usr/bin/env bash
# The gallery: categories that are no English text, each with an exact judge. Of each a diffusion model, a masked
# and an autoregressive one of the same size are trained by the same command, judged, and written into models/.
#
#     scripts/gallery.sh DATA OUT [NAME …]
#
# Names: molecules chess chorales quatrains dialogues. DATA holds their corpora (scripts/gallery_data.py says
# which). What is done is not done again, and a training that was stopped goes on. MODELS is the folder of the
# models (default: models), KINDS the models that are written (default: diffusion). TRAINING_OPTIONS and
# EVALUATION_OPTIONS come last on the command lines, to try the script out.
#
# STAGES (default: prepare train ship) are for two machines: of what `train` writes, OUT/NAME/packed and
# OUT/NAME/*.machine are all that `ship`, which needs the judges' packages and no GPU, has to have.
#
# On an H200 each training takes about three minutes or less, all five categories 30 GPU-minutes (estimated from
# 1.45M tokens/s of 8 blocks of 512, vocabulary 4096; a model here has a quarter to a tenth of the weights).
set -euo pipefail
here=$(dirname "$0")
root=$1 gallery=$2
shift 2
if [ $# -eq 0 ]; then set -- molecules chess chorales quatrains dialogues; fi
names=$*
python=${PYTHON:-python} models=${MODELS:-$here/../models}

# NAME LENGTH TOKENIZER VOCABULARY STEPS BATCH WIDTH WEIGHTS
settings() {
  case $1 in
  molecules) echo 24 bytes 512 8000 1024 192 int8 ;;
  chess) echo 64 symbols 4096 12000 512 208 int8 ;;
  chorales) echo 129 symbols 512 4000 256 192 int8 ;;
  quatrains) echo 33 symbols 6500 12000 1024 176 int8 ;;
  dialogues) echo 129 sentencepiece 4096 12000 256 192 int8 ;;
  *) echo "unknown category $1; known: molecules chess chorales quatrains dialogues" >&2 && exit 2 ;;
  esac
}

one() { # NAME LENGTH TOKENIZER VOCABULARY STEPS BATCH WIDTH WEIGHTS
  local name=$1 length=$2 tokenizer=$3 vocabulary=$4 steps=$5 batch=$6 width=$7 weights=$8
  set -- "$root" "$gallery/$name" prepare
  source "$here/text_experiment.sh"
  if has prepare && [ ! -e "$out/data/dataset.json" ]; then
    $python "$here/gallery_data.py" "$name" "$root" "$out/corpus"
    # Bytes have no vocabulary to learn.
    local learnt=(--vocab-size "$vocabulary")
    if [ "$tokenizer" = bytes ]; then learnt=(); fi
    local valid=(--valid-share 0.02)
    if [ -e "$out/corpus/valid.txt" ]; then valid=(--valid-source "$out/corpus/valid.txt"); fi
    $cdcd data prepare --source "$out/corpus/train.txt" --test-source "$out/corpus/test.txt" \
      "${valid[@]}" --tokenizer "$tokenizer" "${learnt[@]}" --out "$out/data"
  fi
  size=(--preset small --data "$out/data" --data.length "$length" --data.layout documents
    --network.num-blocks 6 --network.width "$width" --network.num-heads 4
    --training.optimiser muon --training.learning-rate 3e-3 --training.batch-size "$batch"
    --training.steps "$steps" --training.decay-steps $((steps / 3)) --training.warmup-steps 100
    --training.average-decay 0.998 --training.valid-sequences 512 --training.keep-best true
    --training.validate-every $((steps / 8)) --training.checkpoint-every $((steps / 8)))
  if has train; then
    train diffusion --embedding.dim 64 --embedding.init-scale 0.05 --network.time-units 128 \
      --sampling.num-steps 100
    train masked --model masked
    train autoregressive --model autoregressive
    local kind
    for kind in diffusion masked autoregressive; do
      $cdcd export "$out/$kind" --out "$out/packed/$kind" --weights "$weights" --replace
    done
  fi
  if has ship; then ship; fi
}

# Judges the weights that are shipped, beside those of the run where it is here, and writes models and cards.
ship() {
  local systems=("$out/packed/diffusion") kind target
  if [ -e "$out/diffusion/config.json" ]; then systems+=("$out/diffusion"); fi
  $cdcd evaluate "${systems[@]}" "$out/packed/masked" --check "$name" --baseline "$out/packed/autoregressive" \
    --data "$out/data" --sweep score-temperature=1.0,0.9,0.8 --sweep temperature=1.0,0.8 \
    --num-samples "${SAMPLES:-2048}" --batch-size 1024 --out "$out/report" "${more_evaluation[@]}"
  for kind in ${KINDS:-diffusion}; do
    target=$models/$name
    if [ "$kind" != diffusion ]; then target=$models/$name-$kind; fi
    export_model "$kind" "$target" --weights "$weights" --report "$out/report/checks.json"
  done
}

has() { [[ " ${STAGES:-prepare train ship} " == *" $1 "* ]]; }

for category in $names; do
  # shellcheck disable=SC2046
  one "$category" $(settings "$category")
done
