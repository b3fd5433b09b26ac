#!/usr/bin/env bash
# What a GPU must show, in one go: the CUDA tests, the cost of every scheme, speed and memory beside a bare loop and
# beside lightly, the speed of the views, and several trainings at once with k-NN and a linear classifier.
#
#   DATA=parquet:PATH/cifar10 OUT=FOLDER [SECONDS_IN_ALL=480] [EPOCHS=3] [RECIPES="…"] bash benchmarks/gpu.sh
#
# Writes OUT/gpu.json (commit, hash of the sources, what every part measured, took and returned) and OUT/gpu-logs.tar.gz.
# Ends with 1 and names the parts if any failed. PARTS runs some of them; SMALL=1 runs all at a size for a CPU, PATIENCE=9
# with nine times the time for each.
set -uo pipefail
cd "$(dirname "$0")/.."
export DATA=${DATA:?the source of images, such as parquet:PATH/cifar10} OUT=${OUT:?a folder for results}
PYTHON=${PYTHON:-python3}
EPOCHS=${EPOCHS:-3}
ALL="tests bf16 fp32 dcluster others views trainings"
PARTS=${PARTS:-$ALL}
for name in $PARTS; do
    case " $ALL " in *" $name "*) ;; *) echo "gpu.sh: unknown part $name; use some of: $ALL" >&2 && exit 2 ;; esac
done
if [ -n "${SMALL:-}" ]; then
    MOCO=${MOCO:-digits-moco-v2+adversarial} DCLUSTER=${DCLUSTER:-digits-deepcluster-v2+adversarial}
    RECIPES=${RECIPES:-digits-moco-v2 digits-moco-v2+adversarial}
    few="--repeats 1 --batch-size 16 --views.size 8 --network.widths [8,16]"
    train="--views.size 8 --network.widths [8,16] --monitor.knn_every 0"
    others="--batch-size 16 --repeats 1 --steps 1 --workers 1"
    views="--batch 8 --rounds 1"
else
    MOCO=${MOCO:-cifar10-moco-v2+adversarial+cutmix} DCLUSTER=${DCLUSTER:-cifar10-deepcluster-v2-6crop+adversarial+cutmix}
    RECIPES=${RECIPES:-cifar10-moco-v2 cifar10-moco-v2+adversarial+cutmix cifar10-deepcluster-v2
        cifar10-deepcluster-v2+adversarial+cutmix cifar10-simclr cifar10-simclr+adversarial+cutmix}
    few="--repeats ${REPEATS:-3} --batch-size ${BATCH:-512}"
    train="--monitor.knn_every 0"
    others="--batch-size ${BATCH:-512} --repeats ${REPEATS:-3}"
    views="--batch ${BATCH:-512} --rounds 5"
fi
device=$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")') || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$OUT"
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
end=$(($(date +%s) + ${SECONDS_IN_ALL:-480}))

# part NAME SECONDS COMMAND…: runs it within its time and what is left of the whole; notes how it ended.
part() {
    local name=$1 seconds=$2 begin left code=0
    shift 2
    begin=$(date +%s) left=$((end - begin))
    seconds=$((seconds * ${PATIENCE:-1}))
    [ "$left" -lt "$seconds" ] && seconds=$((left > 0 ? left : 1))
    timeout --kill-after=10 "$seconds" "$@" > "$WORK/$name.log" 2>&1 || code=$?
    echo "$code $(($(date +%s) - begin)) $seconds" > "$WORK/$name.end"
    echo "$name: $([ $code = 0 ] && echo done || echo "FAILED with $code") in $(($(date +%s) - begin)) of $seconds s"
    [ $code = 0 ] || tail -n 5 "$WORK/$name.log"
}

to_file() { # to_file FILE COMMAND…: its standard output there
    "${@:2}" > "$1"
}
export -f to_file

cost() { # cost NAME RECIPE PRECISION
    part "$1" 70 bash -c 'to_file "$@"' _ "$WORK/$1.json" \
        "$PYTHON" -m hexa benchmark "$2" --json $few --training.precision "$3" --training.device "$device"
}

training() { # a run and what its backbone is worth
    local run="$WORK/runs/$1"
    "$PYTHON" -m hexa pretrain "$1" --data "$DATA" --epochs "$EPOCHS" $train --out "$run" &&
        "$PYTHON" -m hexa evaluate knn "$run" --data "$DATA" --out "$WORK/$1.knn.json" &&
        "$PYTHON" -m hexa evaluate linear "$run" --preset cifar --data "$DATA" --out "$WORK/$1.linear.json"
}
export -f training
export PYTHON EPOCHS WORK train

for name in $PARTS; do
    case $name in
    tests) part tests 100 "$PYTHON" -m pytest -rs --durations 10 --junitxml "$WORK/tests.xml" tests/core/test_cuda.py ;;
    bf16 | fp32) cost "$name" "$MOCO" "$name" ;;
    dcluster) cost dcluster "$DCLUSTER" auto ;;
    others) part others 70 "$PYTHON" benchmarks/against_others.py $others --device "$device" --result "$WORK/others.json" ;;
    views) part views 40 "$PYTHON" benchmarks/views.py $views --device "$device" --out "$WORK/views.json" ;;
    trainings)
        for recipe in $RECIPES; do
            part "training-$recipe" 240 bash -c 'training "$1"' _ "$recipe" &
        done
        wait
        ;;
    esac
done

"$PYTHON" benchmarks/gpu_result.py "$WORK" "$OUT"
