#!/bin/sh
# Multi30k, English to German: the autoregressive baseline, CDCD of the same size, both tested.
#
#   scripts/translation.sh DATA OUT [STAGE …]
#
# DATA holds the published files train, val and test_2016_flickr as *.en.txt.xz and *.de.txt.xz. Without
# stages all are run in turn. Those that are done are not done again; a training that was stopped goes
# on. Settings are chosen on the validation set (tune); the test set is used once, with those settings
# (LENGTHS, CONFIDENCE_WEIGHT). SEEDS are the seeds of CDCD. Several trainings can run at the same time.
#
#   prepare    the data set: 29,000 pairs, vocabulary 8,192
#   baseline   the autoregressive model
#   cdcd       CDCD of the same size
#   tune       settings of mask-predict decoding, on the validation set: the number of lengths for one
#              translation, the weight of the model's confidence for ten; a hundred at a temperature
#   test       one translation and ten, beside the baseline; one and ten by the ODE
#   steps      fewer rounds, and fewer steps of the ODE
#   distil     CDCD trained on the baseline's translations of the training set (Kim & Rush, 2016)
#   distilled  its test
set -eu
data=$1 out=$2
shift 2
# The stage cdcd is a function of that name.
cdcd=${CDCD:-command cdcd}
seeds=${SEEDS:-0 1 2}
lengths=${LENGTHS:-4} confidence=${CONFIDENCE_WEIGHT:-45}
ode="--decoder ode --score-temperature 0.8 --warp-uniformity 0.8"
evaluate="$cdcd evaluate --batch-size 500 --processes 8 ${EVALUATE_OPTIONS:-}"

runs() {
    for seed in $seeds; do echo "$out/cdcd-$seed"; done
}

prepare() {
    [ -f "$out/data/dataset.json" ] || $cdcd data prepare --vocab-size 8192 --out "$out/data" \
        --source "$data/train.en.txt.xz" --target-source "$data/train.de.txt.xz" \
        --valid-source "$data/val.en.txt.xz" --valid-target-source "$data/val.de.txt.xz" \
        --test-source "$data/test_2016_flickr.en.txt.xz" \
        --test-target-source "$data/test_2016_flickr.de.txt.xz"
}

baseline() {
    $cdcd train --resume auto --preset multi30k --model autoregressive --data "$out/data" \
        --out "$out/baseline"
}

# shellcheck disable=SC2086
cdcd() {
    for seed in $seeds; do
        $cdcd train --resume auto --preset multi30k --data "$out/data" --out "$out/cdcd-$seed" \
            --training.seed "$seed" ${CDCD_OPTIONS:-}
    done
}

# shellcheck disable=SC2046,SC2086
tune() {
    $evaluate $(runs | head -n 1) --split valid --sweep num_lengths=1,2,4 --out "$out/tune-one"
    for weight in 0 45; do
        $evaluate $(runs | head -n 1) --split valid --counts 1,10 --confidence-weight $weight \
            --out "$out/tune-ten-$weight"
    done
    $evaluate $(runs | head -n 1) --split valid --counts 1,10,100 --temperature 0.5 \
        --confidence-weight 0 --out "$out/tune-hundred"
}

# shellcheck disable=SC2046,SC2086
test() {
    $evaluate $(runs) --baseline "$out/baseline" --num-lengths $lengths --out "$out/test-one"
    $evaluate $(runs) --baseline "$out/baseline" --counts 1,10 --confidence-weight $confidence \
        --out "$out/test-ten"
    $evaluate $(runs) --counts 1,10 $ode --num-steps 20 --out "$out/test-ode"
}

# shellcheck disable=SC2046,SC2086
steps() {
    $evaluate $(runs | head -n 1) --sweep num_rounds=2,5,10,20,40 --num-lengths 1 \
        --out "$out/steps"
    $evaluate $(runs | head -n 1) --sweep num_steps=5,10,20,50,200 $ode --out "$out/steps-ode"
}

# shellcheck disable=SC2086
distil() {
    [ -f "$out/distilled.de.txt" ] || xz -dc "$data/train.en.txt.xz" |
        $cdcd translate "$out/baseline" --source - --long skip --batch-size 512 --out "$out/distilled.de.txt"
    [ -f "$out/distilled/dataset.json" ] || $cdcd data prepare --out "$out/distilled" \
        --tokenizer "$out/data" --source "$data/train.en.txt.xz" --target-source "$out/distilled.de.txt" \
        --valid-source "$data/val.en.txt.xz" --valid-target-source "$data/val.de.txt.xz" \
        --test-source "$data/test_2016_flickr.en.txt.xz" \
        --test-target-source "$data/test_2016_flickr.de.txt.xz"
    $cdcd train --resume auto --preset multi30k --data "$out/distilled" --out "$out/cdcd-distilled" \
        ${CDCD_OPTIONS:-}
}

# shellcheck disable=SC2086
distilled() {
    $evaluate "$out/cdcd-distilled" --num-lengths $lengths --out "$out/distilled-one"
    $evaluate "$out/cdcd-distilled" --counts 1,10 --confidence-weight $confidence --out "$out/distilled-ten"
    $evaluate "$out/cdcd-distilled" --counts 1,10 $ode --num-steps 20 --out "$out/distilled-ode"
}

[ $# -gt 0 ] || set -- prepare baseline cdcd tune test steps distil distilled
for stage in "$@"; do
    "$stage"
done
