#!/usr/bin/env bash
# The runs that claims still lack, in the order of what they decide. Each line adds rows to a file as they are made, and
# makes none twice: stop it anywhere, give the same command again. One core.
#   CIFAR10=parquet:PATH/cifar10 WORK=FOLDER bash benchmarks/evidence.sh
# Run it from a clean checkout: rows name its commit. A comparison keeps to one kind of processor and one precision.
# Hours are of one core with bf16 (AMX); in fp32 with AVX2 alone they are two to three times as many.
# When to stop: a comparison has five seeds, whatever they show; leave out what an earlier line has decided.
set -eu
CIFAR10=${CIFAR10:?the images, such as parquet:PATH/cifar10}
WORK=${WORK:?a folder for runs}
PRECISION=${PRECISION:-bf16}
PYTHON=${PYTHON:-python3}
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
RESULTS=$PWD/benchmarks
FIVE="0 1 2 3 4"
few() { "$PYTHON" benchmarks/few_images.py --cifar10 "$CIFAR10" --work "$WORK/few" --precision "$PRECISION" \
    --result "$RESULTS/2026-11-23-few-images.json" "$@"; }

# half of each batch mixed, at the two rates that were never tried, beside plain at its best: 9 h
few --lengths 1600 --rates 0.12 0.24 --seeds 0 --arms plain +split --search
few --lengths 1600 --rates 0.12 --seeds $FIVE --arms plain
few --lengths 1600 --rates 0.12 0.24 --seeds $FIVE --arms +split
# mixing at equal epochs (656 / 1.64 = 400), both arms at every rate: 7 h
few --lengths 400 --rates 0.03 0.06 0.12 0.24 --seeds $FIVE --arms plain
few --lengths 656 --rates 0.03 0.06 0.12 0.24 --seeds $FIVE --arms +cutmix
# milder attacks, clusters, both kinds, and the publication's settings: 5 h
few --lengths 400 --rates 0.12 --seeds $FIVE --arms "from ¾, ε = ¼" "from ¾, ε = ½" "ε = ¼" "ε = ½" +adversarial+cutmix
few --lengths 400 --seeds $FIVE --arms DeepCluster-v2 DeepCluster-v2+adversarial DeepCluster-v2+adversarial+cutmix
few --lengths 1600 --seeds 0 --arms "as published" "as published+adversarial" "as published+adversarial+cutmix"
# all 50,000 images, each arm's rate by a search of four at full length; 11, 11 and 8 epochs at equal time: 25 h
"$PYTHON" benchmarks/evidence_cifar10_small.py moco --data "$CIFAR10" --out "$WORK/moco" --epochs 20 --search-epochs 20 \
    --rates 0.03 0.06 0.12 0.24 --seeds $FIVE --workers 1 --costs "$RESULTS/2026-11-22-schemes-cifar10-small-fp32.json" \
    --result "$RESULTS/moco-cifar10-small-20-epochs-five-seeds.json"
# few labels, again from a commit that exists: 1 h
"$PYTHON" benchmarks/semi_supervised.py "$CIFAR10" --work "$WORK/semi" --seeds $FIVE \
    --result "$RESULTS/semi-supervised-cifar10-five-seeds.json"
