#!/usr/bin/env bash
# The small scale of `cdcd reproduce` on a machine that takes one command at a time and may go away: a queue
# that runs on between commands, and a copy of all results after each.
#
#     scripts/reproduce_small.sh DATA WORK SECONDS PACK [TARGET …]
#
# DATA is a prepared data set. The queue works in WORK on a copy of the source and of DATA; the first call
# starts it, later ones find it running. After SECONDS, or when the queue has ended, results are packed into
# the file PACK (.tar.xz). PYTHON, WORKERS, OPTIONS and FILED (such as results/reproduction/small) can be set in
# the environment, SIMPLEX (such as "--steps 20000 --workers 5") to run the simplex study on the CPU beside the
# queue, MPS=1 to let the processes share the GPU through NVIDIA's MPS where that is there.
set -euo pipefail
data=$1 work=$2 seconds=$3 pack=$4
shift 4
targets=${*:-table1 table2 appendix table3}
python=${PYTHON:-python3}
export PYTHONPATH=$work/src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
export TORCHINDUCTOR_COMPILE_THREADS=4 TORCHINDUCTOR_CACHE_DIR=$work/compiled

is_running() { [ -e "$work/$1.pid" ] && kill -0 "$(cat "$work/$1.pid")" 2>/dev/null; }

start() { # NAME COMMAND …: unless it runs
  local name=$1
  shift
  if is_running "$name"; then return; fi
  setsid "$@" >>"$work/$name.log" 2>&1 </dev/null &
  echo $! >"$work/$name.pid"
}

share_gpu() {
  command -v nvidia-cuda-mps-control >/dev/null || return
  mkdir -p "$work/mps"
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  nvidia-cuda-mps-control -d || true
  if timeout 60 "$python" -c 'import torch; torch.ones(8, device="cuda").sum().item()'; then
    echo "the GPU is shared through MPS"
  else
    echo quit | nvidia-cuda-mps-control || true
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}

if [ ! -e "$work/src" ]; then
  mkdir -p "$work"
  cp -r src "$work/src"
  cp -rL "$data" "$work/data"
  # Goes on with the rows that are filed; models, the judge's too, are trained again where rows need them.
  if [ -n "${FILED:-}" ]; then "$python" scripts/file_reproduction.py --restore "$FILED" "$work/out"; fi
fi
if ! is_running queue && [ -n "${MPS:-}" ]; then share_gpu; fi
# shellcheck disable=SC2086
start queue "$python" -m cdcd reproduce $targets --scale small --data "$work/data" --out "$work/out" \
  --workers "${WORKERS:-7}" ${OPTIONS:-}
# shellcheck disable=SC2086
if [ -n "${SIMPLEX:-}" ]; then
  OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES='' start simplex "$python" -m cdcd reproduce simplex \
    --device cpu --out "$work/simplex" $SIMPLEX
fi
end=$((SECONDS + seconds))
while is_running queue && [ $SECONDS -lt $end ]; do sleep 1; done

cd "$work" && mkdir -p out/rows simplex
is_running queue && echo "the queue is still running" || echo "the queue has ended"
find out simplex -name '*.json' -o -name 'metrics.jsonl' -o -name '*.md' -o -name '*.log' |
  grep -v '/step-\|config.json\|tokenizer' >packed.txt
tar cJf packed.tar.xz ./*.log -T packed.txt
cp packed.tar.xz "$pack"
echo "$(find out/rows -name '*.json' | wc -l) results, $(ls out/runs/*/record.json 2>/dev/null | wc -l) trainings"
tail -n 40 queue.log
if [ -e simplex.log ]; then tail -n 5 simplex.log; fi
