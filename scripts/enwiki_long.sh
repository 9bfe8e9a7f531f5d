#!/usr/bin/env bash
# The long runs on English Wikipedia: 20 to 60 thousand steps, of sequences of 64 or 128 tokens, on all of the
# data but a judge's share.
#
#     STEPS=20000 LENGTH=64 scripts/enwiki_long.sh DATA OUT [STAGE …]
#     STEPS=60000 LENGTH=128 scripts/enwiki_long.sh DATA OUT [STAGE …]
#
# DATA and the stages are those of enwiki.sh. A step has as many tokens at every length. The run ends with the
# checkpoint of the best loss at fixed noise levels. RECIPE has options of what won in scripts/studies.py.
set -euo pipefail
export STEPS=${STEPS:-20000} LENGTH=${LENGTH:-64} STEPS_AR=${STEPS_AR:-6000}
export JUDGE_SHARE=${JUDGE_SHARE:-0.2}
export BATCH=${BATCH:-$((65536 / LENGTH))}
export DIFFUSION_OPTIONS="--training.keep-best true ${RECIPE:-}"
exec "$(dirname "$0")/enwiki.sh" "$@"
