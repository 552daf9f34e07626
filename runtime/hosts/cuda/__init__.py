"""Host cuda: the artifact's Metal kernels, compiled for an NVIDIA GPU.

    device         the GPU, whether MLX can use it, and MLX's settings there
    build, nvrtc   kernel text -> machine code, cached by content, by processes of NVIDIA's compiler (compilers)
    *_ahead        what is begun while the rest of the artifact is still being compiled, or its weights are read
    card_writer    weights to the card's memory
    host           puts together what runs the plan's kernels through MLX
    *_steps        decode steps and prompts, in traces
    step_*         a whole decode step as one kernel
    parallel       sums through memory that the cards of a stage see of each other

The text of a kernel is the same as on Apple silicon: the prelude templates/hosts/metal_on_cuda.cuh makes it CUDA.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import BeginBuild, HostEntry

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Host


def _check() -> None:
    from mlxr.runtime.hosts.cuda.device import check_cuda  # noqa: PLC0415 (the record must load without MLX)

    check_cuda()


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.cuda.host import CudaHost  # noqa: PLC0415 (imported when wanted)

    return CudaHost


def _gpu_name() -> str:
    from mlxr.runtime.hosts.cuda.device import chip_name  # noqa: PLC0415

    return chip_name()


@contextmanager
def _building_ahead() -> Iterator[BeginBuild]:
    from mlxr.runtime.hosts.cuda.build_ahead import building_ahead  # noqa: PLC0415

    with building_ahead() as begin:
        yield begin


HOST = HostEntry(
    name="cuda",
    summary="NVIDIA GPUs",
    target="metal",
    load=_load,
    check=_check,
    preference=20,
    auto=True,
    calls_mlx=True,
    gpu_name=_gpu_name,
    building_ahead=_building_ahead,
    cached="kernels of host cuda",
    leaves_experts=True,
)
