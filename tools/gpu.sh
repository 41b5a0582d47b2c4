#!/bin/bash
# gpu.sh - builds, tests and measures the package on a machine with an NVIDIA GPU.
#
#   tools/gpu.sh [FOLDER [STAGE...]]
#
# Everything goes to FOLDER, else to $OUT, else to out/gpu: a log of each stage, the
# tests' outcome (tests.xml), and the figures (gpu.csv, gpu.json). Stages are those of
# STAGES, each with a limit in seconds; together they stay below ten minutes. None needs
# a network. A stage that fails does not end the others; the exit status is 1 then, and
# 0 where all passed or had nothing to do, as most have on a machine without a GPU.
#
# PYTHON is the interpreter, by default .venv's where it is, else python3. It has torch,
# setuptools and pytest. BUDGET is how many seconds benchmarks take.

set -u

STAGES="environment:40 build:120 tests:150 memcheck:50 racecheck:50 benchmarks:170"
BUDGET=${BUDGET:-130}
# What the sanitizers see: a test or a few of each kernel, by pytest's -k.
SANITIZED="bits_of_the_cpu or test_log_softmax or (test_steps and float32)"
SANITIZED+=" or many_rows or wide_rows or gradients_that_nobody_wants"
SANITIZED+=" or may_be_written_to"
NOTHING_TO_DO=77
NO_DEVICE=3

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python_here() {
    if [ -x .venv/bin/python ]; then echo .venv/bin/python; else echo python3; fi
}
PYTHON=${PYTHON:-$(python_here)}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

say() {
    echo "gpu.sh: $*"
}

nothing_to_do() {
    echo "nothing to do: $*"
    exit $NOTHING_TO_DO
}

# A torch that cannot be imported is no machine without a device: the stage fails.
has_device() {
    "$PYTHON" -c "import torch; exit(0 if torch.cuda.is_available() else $NO_DEVICE)"
    case $? in
        0) return 0 ;;
        "$NO_DEVICE") return 1 ;;
        *) exit 1 ;;
    esac
}

# --- what a stage does: in a process of its own, in which its limit ends all of it ------

environment() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv
    else
        echo "no nvidia-smi"
    fi
    for tool in nvcc compute-sanitizer cc; do
        echo "$tool: $(command -v $tool || echo none)"
    done
    "$PYTHON" -m benchmarks.gpu.machine
}

# In place, as make does; without a compiler, what is installed has to do. What an
# earlier build left is not what was checked out: a build that fails is a failure.
build() {
    if command -v cc >/dev/null; then
        "$PYTHON" setup.py -q build_ext --inplace || return
    else
        echo "no C compiler: not built; is it installed?"
    fi
    "$PYTHON" -m benchmarks.gpu.machine
}

# Most of it is processes that start: beside each other, where pytest can do that.
tests() {
    local workers=()

    if has_device; then export PTAC_REQUIRE_GPU=1; fi
    if "$PYTHON" -c "import xdist" 2>/dev/null; then workers=(-n 4); fi
    "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider "${workers[@]}" \
        --junitxml "$folder/tests.xml" tests/gpu tests/memory_pool/test_memory_cuda.py
}

# Torch's cache of memory hides what is written between two tensors.
sanitize() {
    local tests="$PWD/tests"
    local here="$tests/gpu/device:$tests/support:$tests/cuda_emulation"
    command -v compute-sanitizer >/dev/null || nothing_to_do "no compute-sanitizer"
    has_device || nothing_to_do "no CUDA device"
    PYTHONPATH="$here:$PYTHONPATH" PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
        compute-sanitizer --tool "$1" --error-exitcode 9 --log-file "$folder/$1.txt" \
        "$PYTHON" -m pytest -q -p emulation -p no:cacheprovider -p no:xdist \
        -k "$SANITIZED" tests/cuda_emulation/emulated_*.py \
        tests/cuda_emulation/*/emulated_*.py
}

memcheck() {
    sanitize memcheck
}

racecheck() {
    sanitize racecheck
}

benchmarks() {
    has_device || nothing_to_do "no CUDA device"
    "$PYTHON" -m benchmarks gpu --budget "$BUDGET" \
        --csv "$folder/gpu.csv" --json "$folder/gpu.json"
}

# --- all of them ------------------------------------------------------------------------

run() {
    local name=$1 limit=$2 start=$SECONDS status log="$folder/$1.log"

    say "$name begins, $limit s at most"
    timeout --kill-after=5 "$limit" "$BASH" "${BASH_SOURCE[0]}" --stage "$name" \
        "$folder" >"$log" 2>&1
    status=$?
    case $status in
        0) say "$name ends after $((SECONDS - start)) s: passed" ;;
        "$NOTHING_TO_DO") say "$name ends: $(tail -n 1 "$log")" ;;
        124 | 137) say "$name ends after $((SECONDS - start)) s: failed, out of time" ;;
        *) say "$name ends after $((SECONDS - start)) s: failed with status $status" ;;
    esac
    [ $status = 0 ] || [ $status = $NOTHING_TO_DO ] && return 0
    tail -n 20 "$log"
    return 1
}

if [ "${1:-}" = --stage ]; then
    folder=$3
    "$2"
    exit
fi

folder=${1:-${OUT:-out/gpu}}
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
shift
wanted=${*:-all}
failed=""
ran=0
for stage in $STAGES; do
    name=${stage%:*}
    case " $wanted " in
        *" all "* | *" $name "*)
            run "$name" "${stage#*:}" || failed="$failed $name"
            ran=1
            if [ "$name" = environment ]; then cat "$folder/$name.log"; fi
            ;;
    esac
done
if [ $ran = 0 ]; then
    say "no stage is named $wanted; there are: $STAGES"
    exit 2
fi
if [ -n "$failed" ]; then
    say "failed:$failed; results are in $folder"
    exit 1
fi
say "nothing failed; results are in $folder"
