"""The NVIDIA GPU that MLX computes on."""

import mlx.core as mx

from mlxr.compiler.errors import HostError


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


def check_cuda() -> None:
    """Finds out whether host cuda can run.

    Raises:
        HostError: MLX is another build, or there is no card, or its driver is too old.
    """
    if not mx.cuda.is_available():
        raise HostError('host cuda needs the CUDA build of MLX and an NVIDIA GPU: pip install "mlx[cuda13]"')
    if not has_cuda():
        raise HostError("host cuda finds no NVIDIA GPU: see what nvidia-smi says; the driver must be 580 or newer")
