#!/usr/bin/env bash
# Runs the tests that need an NVIDIA GPU: kernels on host cuda against the reference, the bundled model end to end, the
# engine's determinism, and published models (`make test-real` fetches them) against what llama.cpp says.
# Arguments are pytest's. MLX's CUDA build and the test requirements must be importable.
set -e
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests/support:${PYTHONPATH}"
exec python3 -m pytest -p no:cacheprovider -q --all -k cuda "$@" tests/kernels tests/end_to_end/test_storyteller.py tests/end_to_end/test_cuda.py \
    tests/runtime/engine/test_determinism.py tests/real/test_language_models.py
