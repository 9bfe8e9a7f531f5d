#!/bin/sh
# Europarl and Tatoeba, English to German and back: CDCD and the autoregressive baseline, on newstest2014.
#
#   scripts/europarl.sh DATA OUT [prepare|baseline|cdcd|test …] [DIRECTION=de-en in the environment]
#
# DATA holds the folders europarl_en-de and tatoeba_en-de (train.tsv.xz, valid.tsv.xz: English, German) and
# newstest (newstest2014.en.txt.xz, newstest2014.de.txt.xz). Stages that are done are not done again; a
# training that was stopped goes on.
set -eu
data=$1 out=$2
shift 2
# The stage cdcd is a function of that name.
cdcd=${CDCD:-command cdcd}
direction=${DIRECTION:-en-de}
[ "$direction" = en-de ] && reverse=false || reverse=true
shape="--preset wmt-base --data $out/data --data.length 80 --data.source-length 88
    --data.reverse $reverse --seq2seq.relative-positions true"
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
        --training.learning-rate 1e-3 --training.warmup-steps 300 --training.steps 2077 \
        --training.decay-steps 593 $training
}

# shellcheck disable=SC2086
cdcd() {
    $cdcd train --resume auto $shape --out "$out/cdcd-$direction" --embedding.dim 64 \
        --embedding.init-scale 0.05 --objective.masking random --warp.bins log --warp.uniformity 0.8 \
        --training.learning-rate 2e-3 --training.warmup-steps 500 --training.steps 5231 \
        --training.decay-steps 1356 --decoder mask-predict --mask-predict.num-rounds 80 \
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

[ $# -gt 0 ] || set -- prepare baseline cdcd test
for stage in "$@"; do
    "$stage"
done
