"""What `mlx.launch` says to the processes that it starts: the environment that MLX's backends read. Without MLX.

Source: `init` of mlx/distributed/{ring,nccl,jaccl,mpi} and python/mlx/_distributed_utils/launch.py.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlxr.compiler.errors import HostError, MlxrError

Backend = Literal["ring", "nccl", "jaccl", "mpi"]

_NEEDED: dict[Backend, tuple[str, ...]] = {
    "nccl": ("NCCL_HOST_IP", "NCCL_PORT", "MLX_RANK", "MLX_WORLD_SIZE"),
    "ring": ("MLX_HOSTFILE", "MLX_RANK"),
    "jaccl": ("MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_RANK"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
}


@dataclass(frozen=True)
class RankLaunch:
    """How this process was started.

    Attributes:
        backend: MLX's transport.
        rank: of this process.
        size: how many processes there are.
        address: host and port at which rank 0 can listen before the backend does; None with MPI.
        names: of each rank, for messages: its address in the hostfile, or nothing.
    """

    backend: Backend
    rank: int
    size: int
    address: tuple[str, int] | None
    names: tuple[str, ...]


def is_launched() -> bool:
    """Whether this process is one of several that `mlx.launch` or `mpirun` started.

    Raises:
        HostError: as `read_launch`.
    """
    return read_launch(os.environ) is not None


def read_launch(environ: Mapping[str, str]) -> RankLaunch | None:
    """How this process was started; None: not by `mlx.launch`.

    Raises:
        HostError: a variable or file that the backend would not understand.
    """
    backend = next((name for name, needed in _NEEDED.items() if all(environ.get(key) for key in needed)), None)
    if backend is None:
        return None
    address: tuple[str, int] | None = None
    names: tuple[str, ...] = ()
    if backend == "mpi":
        rank, size = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    else:
        rank = _number(environ, "MLX_RANK")
        if backend == "nccl":
            size = _number(environ, "MLX_WORLD_SIZE")
            address = environ["NCCL_HOST_IP"], _number(environ, "NCCL_PORT")
        elif backend == "ring":
            nodes = _json_list(environ, "MLX_HOSTFILE") or [[""]]  # mlx.launch -n 1 writes an empty file
            if not all(isinstance(node, list) and node and isinstance(node[0], str) for node in nodes):
                raise HostError(
                    f"MLX_HOSTFILE is {environ['MLX_HOSTFILE']}, "
                    'and each of its ranks should be a list as ["host:port"]'
                )
            names = tuple(str(node[0]) for node in nodes)
            size, address = len(nodes), _address("MLX_HOSTFILE", names[0]) if len(nodes) > 1 else None
        else:
            size = len(_json_list(environ, "MLX_IBV_DEVICES"))
            address = _address("MLX_JACCL_COORDINATOR", environ["MLX_JACCL_COORDINATOR"])
    if not 0 <= rank < size:
        raise HostError(f"this process was started as rank {rank} of {size}; ranks are 0 to {size - 1}")
    return RankLaunch(backend, rank, size, address, names or ("",) * size)


@contextmanager
def naming_rank() -> Iterator[None]:
    """Errors of ranks but 0 begin with the rank: the terminal is that of all."""
    try:
        yield
    except MlxrError as error:
        launch = None
        with suppress(HostError):
            launch = read_launch(os.environ)
        if launch is not None and launch.rank and error.rank is None:
            error.args, error.rank = (f"rank {launch.rank}: {error}",), launch.rank
        raise


def _number(environ: Mapping[str, str], key: str) -> int:
    text = environ[key]
    if not text.isascii() or not text.isdecimal():
        raise HostError(f"{key} is {text!r}, not a number; mlx.launch sets it")
    return int(text)


def _json_list(environ: Mapping[str, str], key: str) -> list[Any]:
    try:
        text = Path(environ[key]).read_text("utf-8")
        data = json.loads(text) if text.strip() else []
    except (OSError, ValueError) as error:
        raise HostError(f"{key} is {environ[key]}, which cannot be read as JSON: {error}") from error
    if not isinstance(data, list):
        raise HostError(f"{key} is {environ[key]}, which has no list of ranks")
    return data


def _address(key: str, text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    if not host or not port.isdecimal():
        raise HostError(f"{key} has {text!r} for rank 0; give host:port")
    return host, int(port)
