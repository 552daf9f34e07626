#!/usr/bin/env bash
# Runs the tests that need an NVIDIA GPU: kernels on host cuda against the reference, the bundled model end to end, and
# the engine's determinism.
# Arguments are pytest's. MLX's CUDA build and the test requirements must be importable.
set -e
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests/support:${PYTHONPATH}"
exec python3 -m pytest -p no:cacheprovider -q --all -k cuda "$@" tests/kernels tests/end_to_end/test_storyteller.py tests/end_to_end/test_cuda.py \
    tests/runtime/engine/test_determinism.py
