"""Makes this process one of the ranks of a model: `mlx.launch` started it, and MLX connects it with the others."""

import contextlib
import faulthandler
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxr.compiler.errors import HostError, RankError
from mlxr.runtime.parallel.launch import Backend, RankLaunch, read_launch
from mlxr.runtime.parallel.wait_for_ranks import wait_for_ranks

_CONNECT_S = 120
Gather = Callable[[bytes], list[bytes]]
"""A collective that all ranks call with equally many bytes; it returns those of each rank, in order. A `HostError` says
that a rank was lost."""


@dataclass(frozen=True)
class World:
    """All ranks, connected.

    Attributes:
        group: MLX's group of them.
        backend: MLX's transport.
        local_rank: which of the ranks on this machine this is.
        local_size: how many ranks are on this machine.
        hosts: by which the ranks reach each other over TCP; none: the backend does not say.
        machines: the same bytes for ranks on the same machine; none: unknown.
    """

    group: mx.distributed.Group
    backend: Backend
    local_rank: int
    local_size: int
    hosts: tuple[str, ...] = ()
    machines: tuple[bytes, ...] = ()


def join(size: int, wait_s: float = 300) -> World:
    """Connects this process with the others. Rank 0 says on stderr for whom it waits.

    Args:
        size: how many ranks the model has.
        wait_s: for how long to wait for ranks that start late.

    Raises:
        HostError: `mlx.launch` did not start this process, or another number of processes; a rank did not come; or
            MLX cannot connect them.
    """
    launch = read_launch(os.environ)
    if launch is None:
        raise HostError(
            f"this model is split over {size} ranks; start all of them: mlx.launch -n {size} -- mlxr ... "
            "(on several machines: mlx.launch --hostfile FILE -- mlxr ...)"
        )
    if launch.size != size:
        raise HostError(
            f"this model is split over {size} ranks, and {launch.size} were started; give mlx.launch {size} processes"
        )
    if not mx.distributed.is_available(launch.backend):
        raise HostError(
            f"the ranks were started for MLX's backend {launch.backend}, which MLX does not have here; "
            "give mlx.launch --backend ring"
        )
    machines = () if launch.address is None else wait_for_ranks(launch, wait_s)
    local_rank, local_size = _local_place(launch, machines)
    try:
        with _ends_after(_CONNECT_S):
            group = mx.distributed.init(strict=True, backend=launch.backend)
    except (RuntimeError, ValueError) as error:
        raise RankError(launch.rank, f"cannot connect with the others by {launch.backend}: {error}") from error
    hosts = tuple(name.rpartition(":")[0] for name in launch.names if name)
    return World(group, launch.backend, local_rank, local_size, hosts, machines)


def _local_place(launch: RankLaunch, machines: Sequence[bytes]) -> tuple[int, int]:
    if launch.backend == "mpi":
        try:
            return int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]), int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
        except (KeyError, ValueError) as error:
            raise HostError("mpirun did not say which ranks share a machine; MLX needs Open MPI") from error
    if not machines:
        return 0, 1
    here = [rank for rank in range(launch.size) if machines[rank] == machines[launch.rank]]
    return here.index(launch.rank), len(here)


@contextlib.contextmanager
def _ends_after(seconds: float) -> Iterator[None]:
    """Ends the process if the body takes longer: MLX holds the GIL while it waits, so that nothing else can."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def gather_bytes(group: "mx.distributed.Group") -> Gather:
    """The collective of a group, for a few bytes while ranks load.

    Args:
        group: of all ranks.
    """

    def gather(data: bytes) -> list[bytes]:
        own = mx.array(np.frombuffer(data, np.uint8).astype(np.int32)[None])
        try:
            rows = mx.distributed.all_gather(own, group=group, stream=mx.cpu)
            mx.eval(rows)
        except RuntimeError as error:
            raise RankError(group.rank(), f"lost another rank: {error}") from error
        return [row.astype(np.uint8).tobytes() for row in np.array(rows)]

    return gather
