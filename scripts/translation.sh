#!/bin/sh
# Multi30k, English to German: the autoregressive baseline, CDCD of the same size, both tested.
#
#   scripts/translation.sh DATA OUT [prepare|baseline|cdcd|tune|test|steps|mbr|distil …]
#
# DATA holds the published files train, val and test_2016_flickr as *.en.txt.xz and *.de.txt.xz. Without
# stages, the first six are done in turn; mbr chooses the score temperature for ten samples, and distil
# trains CDCD on the baseline's translations of the training set (Kim & Rush, 2016) and tests that. Stages that are done are not done again; a training that was stopped goes
# on. Settings are chosen on the validation set (tune), the test set is used once, with the settings
# in SETTINGS. On one H200: prepare 10 s, baseline and cdcd 3 min together, the rest 2 min. The results in
# results/multi30k are of CDCD_OPTIONS="--embedding.init-scale 0.001".
set -eu
data=$1 out=$2
shift 2
cdcd=${CDCD:-cdcd}
settings=${SETTINGS:-"--score-temperature 0.8 --guidance-scale 2.0"}

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

cdcd() {
    # shellcheck disable=SC2086
    $cdcd train --resume auto --preset multi30k --data "$out/data" --out "$out/cdcd" ${CDCD_OPTIONS:-}
}

tune() {
    $cdcd evaluate "$out/cdcd" --split valid --num-steps 50 --batch-size 512 --out "$out/tune" \
        --sweep score_temperature=0.5,0.8,1.0 --sweep guidance_scale=1.0,2.0
}

# shellcheck disable=SC2086
test() {
    $cdcd evaluate "$out/cdcd" --baseline "$out/baseline" --counts 1,10 --num-steps 200 $settings \
        --batch-size 500 --processes 8 --out "$out/test"
}

# shellcheck disable=SC2086
steps() {
    $cdcd evaluate "$out/cdcd" --sweep num_steps=5,10,20,50,200 $settings --batch-size 500 \
        --out "$out/steps"
}

mbr() {
    $cdcd evaluate "$out/cdcd" --split valid --num-steps 50 --batch-size 512 --counts 1,10 --processes 8 \
        --sweep score_temperature=0.8,0.9,1.0 --out "$out/mbr"
}

distil() {
    [ -f "$out/distilled.de.txt" ] || xz -dc "$data/train.en.txt.xz" |
        $cdcd translate "$out/baseline" --source - --long skip --batch-size 512 --out "$out/distilled.de.txt"
    [ -f "$out/distilled/dataset.json" ] || $cdcd data prepare --out "$out/distilled" \
        --tokenizer "$out/data" --source "$data/train.en.txt.xz" --target-source "$out/distilled.de.txt" \
        --valid-source "$data/val.en.txt.xz" --valid-target-source "$data/val.de.txt.xz" \
        --test-source "$data/test_2016_flickr.en.txt.xz" \
        --test-target-source "$data/test_2016_flickr.de.txt.xz"
    # shellcheck disable=SC2086
    $cdcd train --resume auto --preset multi30k --data "$out/distilled" --out "$out/cdcd-distilled" \
        ${CDCD_OPTIONS:-}
    # shellcheck disable=SC2086
    $cdcd evaluate "$out/cdcd-distilled" --counts 1,10 --num-steps 200 $settings --batch-size 500 \
        --processes 8 --out "$out/test-distilled"
}

[ $# -gt 0 ] || set -- prepare baseline cdcd tune test steps
for stage in "$@"; do
    "$stage"
done
