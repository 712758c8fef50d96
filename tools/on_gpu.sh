#!/usr/bin/env bash
# Do all that only a GPU shows, in one call, on a machine with PyTorch and without Jupyter or a network.
#
#   tools/on_gpu.sh --prepare [3.12]       first, with a network: get the wheels that notebooks need there, into build/wheels
#   tools/on_gpu.sh [--seconds N] [PART…]  there: every part, or those named, in N seconds at most (default: 720)
#   tools/on_gpu.sh --dry-run [PART…]      anywhere: the same with small sizes, on the CPU if there is no GPU
#
# Leaves eight files in $OUT (default: build/on_gpu): begin with report.txt. The exit code is 1 if a part failed.
# PYTHON chooses another Python than python3.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

python=${PYTHON:-python3}
out=${OUT:-build/on_gpu}
seconds=720
small=
# Part → its share of the seconds, by value: what comes last suffers if the whole takes too long.
order=(machine tests findings notebooks loop benchmarks bench)
declare -A share=([machine]=25 [tests]=150 [findings]=90 [notebooks]=230 [loop]=100 [benchmarks]=210 [bench]=80)

prepare() {
    rm -rf build/wheels
    "$python" -m pip download --quiet --dest build/wheels --only-binary=:all: --python-version "$1" --constraint constraints.txt \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --platform manylinux_2_12_x86_64 ipykernel ipywidgets nbclient || exit 1
    echo "$(ls build/wheels | wc -l) wheels for Python $1 in build/wheels, $(du -sm build/wheels | cut -f1) MiB"
}

parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --prepare) prepare "${2:-3.12}"; exit ;;
    --seconds) seconds=$2; shift ;;
    --dry-run) small=yes ;;
    *)
        if [ -z "${share[$1]:-}" ]; then echo "There is no part '$1'; the parts are ${order[*]}." >&2; exit 2; fi
        parts+=("$1")
        ;;
    esac
    shift
done
if [ ${#parts[@]} -eq 0 ]; then parts=("${order[@]}"); fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/{report.txt,logs.txt,tests.xml,bench.json,bench.png,doctor.html,benchmarks.tar.gz,notebooks.tar.gz}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export AMP_COURSE_WORK=$scratch/my_work PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLBACKEND=agg

# Each part is a function of the seconds it has, which leaves its files in $out.
machine() {
    nvidia-smi || echo "no nvidia-smi here"
    "$python" -m amp_course report || return 1
    # Without a GPU all tests would be skipped, and pass.
    [ -n "$small" ] || "$python" -c "import torch; torch.cuda.synchronize()"
}

tests() {
    # Interrupted in time, pytest says what failed so far.
    timeout -s INT "$(($1 - 5))" "$python" -m pytest -m gpu tests/gpu -q --tb=short -rfEs --durations=10 -p no:cacheprovider --junitxml="$out/tests.xml"
}

notebooks() {
    local which=(--alone 09 12 11 06 04 05 00)
    if [ -n "$small" ]; then which=(05 00); fi
    if ! "$python" -c "import ipykernel, ipywidgets, nbclient" 2>/dev/null; then
        ls build/wheels/*.whl >/dev/null || { echo "There are no wheels in build/wheels: see --prepare."; return 1; }
        "$python" -m pip install --quiet --no-index --no-deps --no-compile \
            --target "$scratch/jupyter" build/wheels/*.whl || return 1
        export PYTHONPATH=$PYTHONPATH:$scratch/jupyter
    fi
    "$python" tools/gpu_notebooks.py --out "$scratch/notebooks" \
        --seconds "$(($1 - SECONDS - 20))" "${which[@]}"
}

findings() {
    local which=()
    if [ -n "$small" ]; then which=(--device cpu "audit/an"); fi
    "$python" tools/gpu_findings.py --seconds "$(($1 - 15))" "${which[@]}"
}

loop() {
    local doctor=("$python" -m amp_course doctor --timeout "$(($1 / 2))")
    "$python" tools/gpu_loop.py --explain || return 1
    "${doctor[@]}" tools/gpu_loop.py || return 1
    "${doctor[@]}" --html "$out/doctor.html" --force tools/gpu_loop.py --clip-scaled
    [ $? -eq 1 ] || { echo "The doctor did not find the fault of --clip-scaled."; return 1; }
}

bench() {
    "$python" -m amp_course bench --quick --json "$out/bench.json" --png "$out/bench.png"
}

benchmarks() {
    local size=(--seconds 5)
    if [ -n "$small" ]; then size=(--tiny --rounds 2 --steps 2); fi
    "$python" -m benchmarks.gpu "${size[@]}" --out "$scratch/benchmarks"
}

say() { echo "$*" | tee -a "$out/report.txt"; }

export -f machine tests findings notebooks loop bench benchmarks
export python out scratch small
say "tools/on_gpu.sh on $(date -u +%F), $(git rev-parse --short HEAD 2>/dev/null || echo 'no git'), $seconds s at most"
whole=0
for part in "${parts[@]}"; do whole=$((whole + share[$part])); done
spent=0 failed=()
for part in "${parts[@]}"; do
    # A part that hangs costs the others nothing: each has to end by the end of its own share. What one leaves, the next may use.
    spent=$((spent + share[$part]))
    most=$(((seconds - 15) * spent / whole - SECONDS))
    began=$SECONDS
    log=$scratch/$part.log
    # The trap keeps bash, and so `timeout`, until what it runs has ended: what ignores TERM gets KILL after five seconds.
    timeout -k 5 "$((most > 1 ? most : 1))" bash -c "trap 'exit 124' TERM; $part $most" >"$log" 2>&1
    code=$? took=$((SECONDS - began)) word=passed
    if [ "$code" -ne 0 ]; then
        failed+=("$part") word=FAILED
        if [ "$code" -eq 124 ] || [ "$took" -ge "$most" ]; then word="TIMED OUT"; fi
    fi
    say "$(printf '%-12s %-10s exit code %-4s %4s s of %s s' "$part" "$word" "$code," "$took" "$most")"
    if [ "$code" -ne 0 ]; then say "$(tail -n 40 "$log" | cut -c1-300 | sed 's/^/    | /')"; fi
    { echo "######## $part"; tail -c 2000000 "$log"; } >>"$out/logs.txt"
    if [ -d "$scratch/$part" ]; then tar -czf "$out/$part.tar.gz" -C "$scratch" "$part"; fi
done
say "${#failed[@]} of ${#parts[@]} parts failed${failed[*]:+: ${failed[*]}}; $SECONDS s in all"
[ ${#failed[@]} -eq 0 ]
