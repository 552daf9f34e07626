#!/usr/bin/env bash
# Kernel tests under NVIDIA's compute-sanitizer:
#   tests/gpu_sanitize.sh {memcheck|racecheck|initcheck|synccheck} [PROCESSES [pytest arguments]]
# Each process runs its share of the tests on one of the machine's GPUs. An interrupt (timeout -s INT 300 ...) ends them
# all, and what came so far is counted. Ends with 9 and shows what was found if a process has a finding.
# Texts that are only compiled are left out. Launches are not in CUDA graphs.
cd "$(dirname "$0")/.." || exit
tool="${1:?memcheck, racecheck, initcheck or synccheck}" processes="${2:-1}"
shift $(($# < 2 ? $# : 2))
export PYTHONPATH="src:tests/support:${PYTHONPATH}" MLX_USE_CUDA_GRAPHS=0
options=(--target-processes all --print-limit 20)
case "$tool" in
  racecheck) export MLXR_TEST_STEPS=4 ;; # of a step that is one kernel each takes seconds, instead of up to 200
  initcheck)
    export MLXR_TEST_POISON=0 # outputs that start as NaN would be initialised
    export MLXR_TEST_MLX=0    # what cuBLAS's kernels for Hopper store counts as never written
    options+=(--check-api-memory-access no) # MLX copies whole allocations, which are larger than what was written
    ;;
esac
gpus="$(nvidia-smi -L | grep -c '^GPU')"
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

set -m # every process leads a group, all of which gets an interrupt; it is pytest that heeds it, see conftest.py
trap 'for group in $(jobs -p); do kill -INT -- "-$group" 2>/dev/null; done' INT TERM
for ((i = 0; i < processes; i++)); do
  echo 137 >"$logs/$i.status" # killed, unless it says otherwise
  (
    trap '' INT
    export CUDA_VISIBLE_DEVICES=$((i % (gpus ? gpus : 1)))
    compute-sanitizer --tool "$tool" "${options[@]}" --log-file "$logs/$i.%p.log" \
      python3 -m pytest -p no:cacheprovider --all -k cuda --share "$i/$processes" --deselect tests/kernels/test_cuda_texts.py \
      --deselect tests/kernels/test_cuda_step_texts.py "$@" tests/kernels
    echo $? >"$logs/$i.status"
  ) >"$logs/$i.txt" 2>&1 &
done
while [ -n "$(jobs -pr)" ]; do wait; done

finding='SUMMARY: [1-9]|=========.*(Invalid|Uninitialized|Race|hazard at)' clean=0 cut=0
for ((i = 0; i < processes; i++)); do
  grep -hE '^(FAILED|ERROR) ' "$logs/$i.txt"
  if [[ "$(<"$logs/$i.status")" != [015] ]]; then
    cut=$((cut + 1))
    tail -n 3 "$logs/$i.txt"
  fi
  if grep -qs 'SUMMARY: 0 ' "$logs/$i".*.log && ! grep -qE "$finding" "$logs/$i".*.log; then clean=$((clean + 1)); fi
  grep -E '[0-9]+ [a-z]+ in [0-9.]+s' "$logs/$i.txt" | tail -n 1 >"$logs/$i.total"
done
tests="$(grep -ohE '[0-9]+ (passed|failed|skipped|error)' "$logs"/*.total |
  awk '{n[$2] += $1} END {print n["passed"] + 0, "passed,", n["failed"] + n["error"], "failed,", n["skipped"] + 0, "skipped"}')"
echo "$tool: $clean of $processes processes without a finding, $cut did not end by themselves; tests: $tests"
if grep -qsE "$finding" "$logs"/*.log; then
  grep -lZE "$finding" "$logs"/*.log | xargs -0 cat
  exit 9
fi
worst="$(cat "$logs"/*.status | grep -vx 5 | sort -n | tail -n 1)" # 5: there were fewer tests than processes
exit "${worst:-5}"
