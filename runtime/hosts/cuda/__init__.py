"""Kernels of the `cuda` host: Metal text to CUDA machine code."""
