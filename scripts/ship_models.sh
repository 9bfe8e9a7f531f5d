#!/usr/bin/env bash
# Trains the models that are shipped, measures them, and writes each with its card into models/.
#
#     scripts/ship_models.sh DATA OUT [NAME …]
#
# Names: tales numerals stories wiki en-de de-en, and the gallery: molecules chess chorales quatrains dialogues.
# DATA holds the corpora, in folders: stories15m, tinystories, enwiki2015, europarl_en-de, tatoeba_en-de, newstest,
# and those of gallery_data.py. What is done is not done again, and a training that was stopped goes on: the
# command can be repeated until it succeeds. STEPS and STEPS_AR shorten the trainings of one model.
#
# GPU-minutes on an H200, estimated from the speeds in docs/benchmarks.md; the cards have those that it took:
#
#     stories   30   200M tokens of corpus 4, diffusion 14, masked 10, autoregressive 2
#     wiki      25   diffusion 18, judge and autoregressive 7
#     en-de     8    diffusion 6, autoregressive 2; de-en as much
#     gallery   30   all five, of three models each; they fit beside other runs on one card
set -euo pipefail
here=$(dirname "$0")
data=$1 out=$2
shift 2
if [ $# -eq 0 ]; then set -- stories wiki en-de de-en molecules chess chorales quatrains dialogues; fi
cdcd=${CDCD:-cdcd}
# Thirty-two calls of 33M parameters on 128 tokens are the most that two CPU cores do in five seconds.
quick="sampling.num_steps=31 sampling.score_temperature=0.9"

built_in() { # NAME PRESET REPORT OPTION …
  local name=$1 preset=$2 report=$3 target=${MODELS:-$here/../models}/$1
  shift 3
  [ -e "$out/$name/done" ] || $cdcd train --resume auto --preset "$preset" --out "$out/$name"
  touch "$out/$name/done"
  $cdcd export "$out/$name" --out "$target" --facts "$here/models.toml" --replace
  $cdcd evaluate "$target" --out "$out/reports/$name" "$@"
  $cdcd export "$out/$name" --out "$target" --facts "$here/models.toml" --replace \
    --report "$out/reports/$name/$report"
}

translator() { # DIRECTION
  # Half of the weights of wmt-base, so that both directions fit.
  DIRECTION=$1 SHAPE="--seq2seq.width 384 --seq2seq.hidden 1536 --seq2seq.num-heads 6" \
    STEPS=${STEPS:-8000} STEPS_AR=${STEPS_AR:-2400} \
    "$here/europarl.sh" "$data" "$out/translation" prepare baseline cdcd ship
}

mkdir -p "$out"
for name; do
  case $name in
  tales) built_in tales demo checks.json --check tales ;;
  numerals) built_in numerals numerals translation.json ;;
  stories)
    SET=${SET:-$quick} TOKENS=${TOKENS:-200M} LENGTH=${LENGTH:-128} BATCH=${BATCH:-512} STEPS=${STEPS:-16000} \
      STEPS_AR=${STEPS_AR:-4000} TINYSTORIES=$data/tinystories JUDGE_SHARE=0 \
      "$here/stories.sh" "$data/stories15m" "$out/stories" corpus prepare baseline diffusion masked ship
    ;;
  wiki)
    SET=${SET:-$quick} STEPS=${STEPS:-20000} LENGTH=${LENGTH:-64} \
      "$here/enwiki_long.sh" "$data/enwiki2015" "$out/wiki" prepare judge baseline diffusion ship
    ;;
  en-de | de-en) translator "$name" ;;
  *) "$here/gallery.sh" "$data" "$out/gallery" "$name" ;;
  esac
done
