#!/usr/bin/env bash
# Kernel tests under NVIDIA's compute-sanitizer: tests/gpu_sanitize.sh {memcheck|racecheck|initcheck} [pytest arguments]
# Launches are not in CUDA graphs, and where initcheck looks, outputs do not start as NaN.
set -e
cd "$(dirname "$0")/.."
tool="${1:?memcheck, racecheck or initcheck}"
shift
export PYTHONPATH="src:tests/support:${PYTHONPATH}" MLX_USE_CUDA_GRAPHS=0
if [ "$tool" = initcheck ]; then export MLXR_TEST_POISON=0; fi
exec compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all --print-limit 20 \
  python3 -m pytest -p no:cacheprovider -p no:xdist -q -k cuda "$@" tests/kernels
