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

steps=20 arms="eager replayed compiled both" small=""
if [ -n "${SMALL:-}" ]; then
    steps=1 arms="eager replayed" small="--small"
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
[ -n "$small" ] || timeout 100 "$PYTHON" -m pytest -q tests/core/test_cuda.py 2>&1 | tee "$OUT/tests.txt" | tail -n 3
