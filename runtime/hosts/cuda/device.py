"""The NVIDIA GPU that MLX computes on, and MLX's settings there, which it reads once, when it first uses the GPU."""

import os

import mlx.core as mx

from mlxr.compiler.errors import HostError

# MLX ends a CUDA graph when the arrays that its launches bind have so many MiB. It counts the whole arena at each
# launch that binds it, so that a large arena would end the graph after every attention.
os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(1 << 30))
# A CUDA graph for a whole step: each costs the CPU time, and MLX's own would have 20 launches.
os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "200")
# Matmuls of f32 in f32, as the spec says, and not in TF32 of 10 bits.
os.environ.setdefault("MLX_ENABLE_TF32", "0")


def has_cuda() -> bool:
    """Whether this is MLX's CUDA build and it sees a card."""
    return mx.cuda.is_available() and bool(mx.device_info(mx.Device(mx.gpu)).get("architecture"))


def architecture() -> str:
    """What kernels are compiled for, for example `sm_90a`.

    Raises:
        HostError: there is no card that MLX can use.
    """
    check_cuda()
    info = mx.device_info(mx.Device(mx.gpu))
    major, minor = info["compute_capability_major"], info["compute_capability_minor"]
    return f"sm_{major}{minor}" + ("a" if int(major) >= 9 else "")


def limit_cache() -> None:
    """Keeps MLX from holding more than a quarter of the GPU's memory that no array uses.

    MLX gives a freed buffer to arrays of its own size alone. After prompts of many lengths it would hold all memory,
    which other processes then lack.
    """
    total = int(mx.device_info(mx.Device(mx.gpu)).get("total_memory", 0))
    if total:
        mx.set_cache_limit(total // 4)


def check_cuda() -> None:
    """Finds out whether host cuda can run.

    Raises:
        HostError: MLX is another build, or there is no card, or its driver is too old.
    """
    if not mx.cuda.is_available():
        raise HostError('host cuda needs the CUDA build of MLX and an NVIDIA GPU: pip install "mlx[cuda13]"')
    if not has_cuda():
        raise HostError("host cuda finds no NVIDIA GPU: see what nvidia-smi says; the driver must be 580 or newer")
