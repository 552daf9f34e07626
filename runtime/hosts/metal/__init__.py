"""Host metal: the artifact's kernels on the GPU of an Apple silicon Mac."""

from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import HostEntry

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Host


def _check() -> None:
    import mlx.core as mx  # noqa: PLC0415 (the record must load without MLX)

    from mlxr.compiler.errors import HostError  # noqa: PLC0415

    if not mx.metal.is_available():
        raise HostError("host metal needs an Apple silicon Mac; use --host cpu here")


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.metal.host import MetalHost  # noqa: PLC0415 (imported when wanted)

    return MetalHost


def _gpu_name() -> str:
    import mlx.core as mx  # noqa: PLC0415

    return str(mx.device_info().get("device_name", ""))


HOST = HostEntry(
    name="metal",
    summary="Apple silicon",
    target="metal",
    load=_load,
    check=_check,
    preference=10,
    auto=True,
    calls_mlx=True,
    gpu_name=_gpu_name,
)
