#!/usr/bin/env bash
# Kernel tests under NVIDIA's compute-sanitizer: tests/gpu_sanitize.sh {memcheck|racecheck|initcheck} [pytest arguments]
# -n 16 runs them in 16 processes, all watched. Ends with 9 and shows what was found if any process has a finding.
# Launches are not in CUDA graphs, and where initcheck looks, outputs do not start as NaN.
cd "$(dirname "$0")/.." || exit
tool="${1:?memcheck, racecheck or initcheck}"
shift
export PYTHONPATH="src:tests/support:${PYTHONPATH}" MLX_USE_CUDA_GRAPHS=0
if [ "$tool" = initcheck ]; then export MLXR_TEST_POISON=0; fi
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
trap : INT
compute-sanitizer --tool "$tool" --target-processes all --print-limit 20 --log-file "$logs/%p" \
  python3 -m pytest -p no:cacheprovider -q -k cuda "$@" tests/kernels
status=$?
echo "$tool: $(grep -lE 'SUMMARY: 0 ' "$logs"/* | wc -l) processes without a finding"
found="$(grep -lE 'SUMMARY: [1-9]|=========.*(Invalid|Uninitialized|Race|hazard at)' "$logs"/*)"
if [ -n "$found" ]; then
  cat $found
  exit 9
fi
exit $status
