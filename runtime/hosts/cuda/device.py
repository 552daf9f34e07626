"""The NVIDIA GPU that MLX computes on, and MLX's settings for it."""

import os

import mlx.core as mx

from mlxr.compiler.errors import HostError

_SETTINGS = {
    # MLX ends a CUDA graph when the arrays that its launches bind have so many MiB. It counts the whole arena at each
    # launch that binds it, so that a large arena would end the graph after every attention.
    "MLX_MAX_MB_PER_BUFFER": str(1 << 30),
    # One CUDA graph for a whole step, because each graph costs CPU time; MLX would end it after 20 launches.
    "MLX_MAX_OPS_PER_BUFFER": "200",
    # Matmuls of f32 in f32, as the spec says, and not in TF32 of 10 bits.
    "MLX_ENABLE_TF32": "0",
}
"""Environment variables of MLX; what the user has set stays."""
_OF_RANKS = {
    # Ranks of several stages launch no step before they have read the last one, and nobody does while a constraint
    # waits for a token: the GPU should begin while the CPU prepares the rest. A rank of two of Llama-3-8B in bf16 takes
    # 4.1 ms a step then on an H100, instead of 4.6 with 200; launched ahead it takes 3.3 with both.
    "MLX_MAX_OPS_PER_BUFFER": "50",
}
_RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")


def has_cuda() -> bool:
    """Whether this is MLX's CUDA build and it sees a card.

    If it is that build, this also makes MLX's settings: whoever wants the GPU asks here first, and MLX reads them when
    it first computes.
    """
    if not mx.cuda.is_available():
        return False
    is_rank = any(name in os.environ for name in _RANK_VARIABLES)
    for name, value in (_SETTINGS | (_OF_RANKS if is_rank else {})).items():
        os.environ.setdefault(name, value)
    return bool(mx.device_info(mx.Device(mx.gpu)).get("architecture"))


def architecture() -> str:
    """The architecture to compile kernels for, for example `sm_90a`.

    Raises:
        HostError: there is no card that MLX can use.
    """
    check_cuda()
    info = mx.device_info(mx.Device(mx.gpu))
    major, minor = info["compute_capability_major"], info["compute_capability_minor"]
    return f"sm_{major}{minor}" + ("a" if int(major) >= 9 else "")


def chip_name() -> str:
    """What the GPU calls itself; empty if it has no matrix instructions (before Ampere).

    The launch geometry of chips uses these instructions, and an older GPU would emulate them.
    """
    info = mx.device_info(mx.Device(mx.gpu))
    return str(info.get("device_name", "")) if int(info.get("compute_capability_major", 8)) >= 8 else ""


def limit_cache() -> None:
    """Limits the memory that MLX keeps for later arrays to a quarter of the GPU's.

    MLX reuses a freed buffer only for arrays of the same size. After prompts of many lengths it would keep all memory,
    and other processes would have none.
    """
    total = int(mx.device_info(mx.Device(mx.gpu)).get("total_memory", 0))
    if total:
        mx.set_cache_limit(total // 4)


def check_cuda() -> None:
    """Checks that host cuda can run; makes MLX's settings, as `has_cuda` does.

    Raises:
        HostError: MLX is another build, or there is no card, or its driver is too old.
    """
    if not mx.cuda.is_available():
        raise HostError('host cuda needs the CUDA build of MLX and an NVIDIA GPU: pip install "mlxr[cuda]"')
    if not has_cuda():
        raise HostError("host cuda finds no NVIDIA GPU: see what nvidia-smi says; the driver must be 580 or newer")
