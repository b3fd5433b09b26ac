#!/usr/bin/env bash
# Replayed steps on a GPU, in 12 minutes: the CUDA tests, then each case with every arm, each within a limit of its own.
#
#   OUT=FOLDER bash benchmarks/graph.sh          on a GPU
#   OUT=FOLDER SMALL=1 bash benchmarks/graph.sh  on a CPU, to try the script
#
# Every line is written at once, to OUT/CASE.jsonl.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:?a folder for results}
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD/benchmarks"
mkdir -p "$OUT"

steps=20 arms="eager replayed compiled both" small="" length=300
if [ -n "${SMALL:-}" ]; then
    steps=1 arms="eager replayed" small="--small" length=40
fi

# a case, and the seconds that it may take
while read -r name seconds; do
    timeout --kill-after=10 $((seconds * ${PATIENCE:-1})) "$PYTHON" benchmarks/graph.py "$name" --steps "$steps" --arms $arms $small |
        tee "$OUT/$name.jsonl" || echo "$name: ended with $?"
done <<CASES
harden 150
moco8 120
moco1 90
hexa8 120
resnet50 90
CASES
# whole trainings: the views of the next step are made on a second stream
for graph in false true; do
    timeout $((40 * ${PATIENCE:-1})) "$PYTHON" -m hexa pretrain digits-moco-v2 --max-steps "$length" --training.graph "$graph" \
        --monitor.knn_every 0 --training.report false --out "$OUT/run-$graph" > "$OUT/run-$graph.txt" 2>&1
    grep "^step" "$OUT/run-$graph.txt" | tail -n 1 | sed "s/^/graph $graph: /"
done
[ -n "$small" ] || timeout 100 "$PYTHON" -m pytest -q tests/core/test_cuda.py 2>&1 | tee "$OUT/tests.txt" | tail -n 3
