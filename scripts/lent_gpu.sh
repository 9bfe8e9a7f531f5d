#!/usr/bin/env bash
# Runs a queue of commands on a lent GPU that takes one call at a time and may go away between two calls.
#
#     scripts/lent_gpu.sh JOBS WORK SECONDS OUT
#
# JOBS is a file with a command on each line (# begins a comment). The first call copies the working tree to
# WORK/tree and starts the commands there, the first lines first, WORKERS (default 8) side by side; they run on
# between calls, and later calls find them running. After SECONDS, or when all have ended, a call packs what lies
# in WORK/results, without checkpoints, corpora and data sets, into OUT/results.tar.xz.00, .01, … of 15 MB each:
#
#     cat OUT/results.tar.xz.* | tar xJ
#
# Commands find this folder as $RESULTS. CARRIED is a folder of earlier results that the first call puts there, so
# that a machine that went away costs only what had not come back. PYTHON names the interpreter; $CDCD is the
# command line of cdcd. The processes share the GPU by NVIDIA's MPS where that works; MPS=0 leaves it out.
set -euo pipefail
jobs=$(realpath "$1") work=$2 seconds=$3 out=$4
export RESULTS=$work/results PYTHON=${PYTHON:-python3} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
export PYTHONPATH=$work/tree/src${PYTHONPATH:+:$PYTHONPATH} CDCD="$PYTHON -m cdcd"
export TORCHINDUCTOR_COMPILE_THREADS=4 TORCHINDUCTOR_CACHE_DIR=$work/compiled
# What was traced once is kept for other runs of the same shape.
export TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1

is_running() { [ -e "$work/pid" ] && kill -0 "$(cat "$work/pid")" 2>/dev/null; }

share_gpu() {
  if [ "${MPS:-1}" = 0 ] || ! command -v nvidia-cuda-mps-control >/dev/null; then return; fi
  mkdir -p "$work/mps"
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  nvidia-cuda-mps-control -d || true
  if timeout 60 "$PYTHON" -c 'import torch; torch.ones(8, device="cuda").sum().item()'; then
    echo "the GPU is shared by MPS"
  else
    echo quit | nvidia-cuda-mps-control || true
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}

# A line that begins with its number: runs the rest, and notes in the log when, and with which exit code, it ended.
run_job() {
  local number=${1%% *} command=${1#* } code=0
  cd "$WORK/tree"
  bash -c "set -euo pipefail; $command" >>"$RESULTS/logs/$number.log" 2>&1 || code=$?
  echo "$(date +%T) $number ended with code $code: $command" >>"$RESULTS/logs/queue.log"
}
export -f run_job
export WORK=$work

if [ ! -e "$work/tree" ]; then
  mkdir -p "$work/new" "$RESULTS/logs"
  tar c --exclude=.git --exclude=.venv . | tar x -C "$work/new"
  if [ -n "${CARRIED:-}" ]; then cp -r "$CARRIED/." "$RESULTS"; fi
  mv "$work/new" "$work/tree"
  share_gpu
  grep -v '^ *\(#\|$\)' "$jobs" | cat -n | sed 's/^ *//; s/\t/ /' >"$work/queue"
  # shellcheck disable=SC2016
  setsid xargs -a "$work/queue" -d '\n' -P "${WORKERS:-8}" -n 1 bash -c 'run_job "$0"' </dev/null >/dev/null 2>&1 &
  echo $! >"$work/pid"
fi
end=$((SECONDS + seconds))
while is_running && [ $SECONDS -lt $end ]; do sleep 1; done

if is_running; then echo "the queue is still running"; else echo "the queue has ended"; fi
mkdir -p "$out"
tar c -C "$RESULTS" --exclude='step-*' --exclude='data' --exclude='corpus' --exclude='*.bin' . |
  xz -T 4 -1 | split -b 15M -d - "$out/results.tar.xz."
tail -n 3 "$RESULTS"/logs/[0-9]*.log | cut -c1-200
if [ -e "$RESULTS/logs/queue.log" ]; then cat "$RESULTS/logs/queue.log"; fi
