#!/bin/sh
# Europarl and Tatoeba, English to German and back: CDCD and the autoregressive baseline, on newstest2014.
#
#   scripts/europarl.sh DATA OUT [prepare|baseline|cdcd|test|ship …] [DIRECTION=de-en in the environment]
#
# DATA holds the folders europarl_en-de and tatoeba_en-de (train.tsv.xz, valid.tsv.xz: English, German) and
# newstest (newstest2014.en.txt.xz, newstest2014.de.txt.xz). Stages that are done are not done again; a
# training that was stopped goes on. `ship` writes models/en-de or models/de-en: SHAPE has options of its size,
# and sentences of everyday life (the validation set of Tatoeba) are a second test set.
set -eu
data=$1 out=$2
shift 2
# The stage cdcd is a function of that name.
cdcd=${CDCD:-command cdcd}
direction=${DIRECTION:-en-de}
[ "$direction" = en-de ] && reverse=false || reverse=true
shape="--preset wmt-base --data $out/data --data.length 80 --data.source-length 88
    --data.reverse $reverse --seq2seq.relative-positions true ${SHAPE:-}"
steps=${STEPS:-5231} steps_ar=${STEPS_AR:-2077}
training="--training.optimiser muon --training.schedule constant --training.batch-size 512
    --training.average-decay 0.999 --training.patience 0 --training.valid-sequences 512
    --training.validate-every 1000 --training.checkpoint-every 1000 ${TRAINING_OPTIONS:-}"

prepare() {
    [ ! -f "$out/data/dataset.json" ] || return 0
    mkdir -p "$out"
    for part in train valid; do
        for corpus in europarl tatoeba; do
            xz -dc "$data/${corpus}_en-de/$part.tsv.xz" | cut -f 1,2
        done >"$out/$part.tsv"
    done
    $cdcd data prepare --vocab-size 16384 --out "$out/data" --source "$out/train.tsv" --column 1 \
        --target-column 2 --valid-source "$out/valid.tsv" \
        --test-source "$data/newstest/newstest2014.en.txt.xz" \
        --test-target-source "$data/newstest/newstest2014.de.txt.xz"
}

# shellcheck disable=SC2086
baseline() {
    $cdcd train --resume auto $shape --model autoregressive --out "$out/baseline-$direction" \
        --training.learning-rate 1e-3 --training.warmup-steps 300 --training.steps "$steps_ar" \
        --training.decay-steps $((steps_ar * 593 / 2077)) $training
}

# shellcheck disable=SC2086
cdcd() {
    $cdcd train --resume auto $shape --out "$out/cdcd-$direction" --embedding.dim 64 \
        --embedding.init-scale 0.05 --objective.masking random --warp.bins log --warp.uniformity 0.8 \
        --training.learning-rate 2e-3 --training.warmup-steps 500 --training.steps "$steps" \
        --training.decay-steps $((steps * 1356 / 5231)) --decoder mask-predict --mask-predict.num-rounds 80 \
        --mask-predict.num-lengths 4 --sampling.guidance-scale 1 --sampling.score-temperature 0.8 \
        --sampling.warp-uniformity 0.8 $training
}

# shellcheck disable=SC2086
test() {
    $cdcd evaluate "$out/cdcd-$direction" --baseline "$out/baseline-$direction" --batch-size 256 \
        --processes 6 --out "$out/test-$direction"
    $cdcd evaluate "$out/cdcd-$direction" --batch-size 512 --processes 6 --decoder ode --num-steps 20 \
        --out "$out/test-ode-$direction"
}

# shellcheck disable=SC2086
export_to() {
    target=$1 run=$2
    shift 2
    machine=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || true
    $cdcd export "$run" --out "$target" --replace --facts "$(dirname "$0")/models.toml" --weights int8 \
        --machine "one ${machine:-$(uname -m) CPU}, $(($(cat "$run.seconds") / 60)) minutes" ${SET_OPTIONS:-} "$@"
}

ship() {
    model=${MODELS:-$(dirname "$0")/../models}/$direction
    [ "$direction" = en-de ] && columns="1 2" || columns="2 1"
    for column in $columns; do
        xz -dc "$data/tatoeba_en-de/valid.tsv.xz" | cut -f "$column" >"$out/everyday-$direction-$column.txt"
    done
    export_to "$model" "$out/cdcd-$direction"
    common="--baseline $out/baseline-$direction --data $out/data --batch-size 256"
    # shellcheck disable=SC2086
    $cdcd evaluate "$model" $common --out "$out/$direction/newstest2014"
    # shellcheck disable=SC2086
    $cdcd evaluate "$model" $common --out "$out/$direction/everyday" \
        --source "$out/everyday-$direction-${columns% *}.txt" \
        --reference "$out/everyday-$direction-${columns#* }.txt"
    export_to "$model" "$out/cdcd-$direction" --report "$out/$direction/newstest2014/translation.json" \
        --report "$out/$direction/everyday/translation.json"
}

# Runs a stage, and keeps the seconds of a training beside its run.
timed() {
    started=$(date +%s)
    "$1"
    case $1 in cdcd | baseline)
        run=$out/$1-$direction
        seconds=$(cat "$run.seconds" 2>/dev/null || echo 0)
        echo $((seconds + $(date +%s) - started)) >"$run.seconds"
        ;;
    esac
}

[ $# -gt 0 ] || set -- prepare baseline cdcd test
for stage in "$@"; do
    timed "$stage"
done
