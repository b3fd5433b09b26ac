#!/usr/bin/env bash
# What a GPU must show, in one go: CUDA tests, costs of every scheme, speed beside others, and six trainings at once.
#   DATA=parquet:PATH/cifar10 OUT=FOLDER EPOCHS=100 bash benchmarks/gpu.sh
set -eu
DATA=${DATA:?the source of images, such as parquet:PATH/cifar10}
OUT=${OUT:?a folder for results}
EPOCHS=${EPOCHS:-100}
mkdir -p "$OUT"
python3 -m pytest -q tests/core/test_cuda.py | tee "$OUT/cuda-tests.txt"
for precision in bf16 fp32; do
    python3 -m hexa benchmark cifar10-hexa-moco --json --training.precision "$precision" > "$OUT/schemes-$precision.json"
done
python3 -m hexa benchmark cifar10-hexa-dcluster-plus --json > "$OUT/schemes-dcluster.json"
python3 benchmarks/against_others.py --batch-size 512 --result "$OUT/against-others.json" || true  # lightly may be absent
for recipe in cifar10-moco-v2 cifar10-hexa-moco cifar10-hexa-moco-plus \
    cifar10-deepcluster-v2 cifar10-hexa-dcluster cifar10-hexa-dcluster-plus; do
    (
        python3 -m hexa pretrain "$recipe" --data "$DATA" --epochs "$EPOCHS" --out "$OUT/$recipe"
        python3 -m hexa evaluate knn "$OUT/$recipe" --data "$DATA" --out "$OUT/$recipe-knn.json"
        python3 -m hexa evaluate linear "$OUT/$recipe" --data "$DATA" --out "$OUT/$recipe-linear.json"
    ) > "$OUT/$recipe.log" 2>&1 &
done
wait
