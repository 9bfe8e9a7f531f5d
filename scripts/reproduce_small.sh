#!/usr/bin/env bash
# The small scale of `cdcd reproduce` on a machine that takes one command at a time and may go away: a queue
# that runs on between commands, and a copy of all results after each.
#
#     scripts/reproduce_small.sh DATA WORK SECONDS PACK [TARGET …]
#
# DATA is a prepared data set. The queue works in WORK on a copy of the source and of DATA; the first call
# starts it, later ones find it running. After SECONDS, or when the queue has ended, results are packed into
# the file PACK (.tar.xz). PYTHON, WORKERS, OPTIONS and FILED (such as results/reproduction/small) can be set in
# the environment.
set -euo pipefail
data=$1 work=$2 seconds=$3 pack=$4
shift 4
targets=${*:-table1 table2 appendix table3}
python=${PYTHON:-python3}
export PYTHONPATH=$work/src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
export TORCHINDUCTOR_COMPILE_THREADS=4 TORCHINDUCTOR_CACHE_DIR=$work/compiled

is_running() { [ -e "$work/queue.pid" ] && kill -0 "$(cat "$work/queue.pid")" 2>/dev/null; }

if [ ! -e "$work/src" ]; then
  mkdir -p "$work"
  cp -r src "$work/src"
  cp -rL "$data" "$work/data"
  # Goes on with the rows that are filed; models, the judge's too, are trained again where rows need them.
  if [ -n "${FILED:-}" ]; then "$python" scripts/file_reproduction.py --restore "$FILED" "$work/out"; fi
fi
if ! is_running; then
  # shellcheck disable=SC2086
  setsid "$python" -m cdcd reproduce $targets --scale small --data "$work/data" --out "$work/out" \
    --workers "${WORKERS:-7}" ${OPTIONS:-} >>"$work/queue.log" 2>&1 </dev/null &
  echo $! >"$work/queue.pid"
fi
end=$((SECONDS + seconds))
while is_running && [ $SECONDS -lt $end ]; do sleep 1; done

cd "$work" && mkdir -p out/rows
is_running && echo "the queue is still running" || echo "the queue has ended"
find out -name '*.json' -o -name 'metrics.jsonl' -o -name '*.md' -o -name '*.log' | grep -v '/step-\|config.json\|tokenizer' >packed.txt
tar cJf packed.tar.xz queue.log -T packed.txt
cp packed.tar.xz "$pack"
echo "$(find out/rows -name '*.json' | wc -l) results, $(ls out/runs/*/record.json 2>/dev/null | wc -l) trainings"
tail -n 40 queue.log
