"""A link between the machines of a model that is split: its figures, each with its origin, and their schema."""

from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.artifact.chip import Figure
from mlxr.compiler.spec.record import Record

Backend = Literal["ring", "jaccl", "nccl"]
"""The backend of `mx.distributed` that moves the bytes: `ring` over TCP, from neighbour to neighbour; `jaccl` over
RDMA, where each machine has a cable to every other one; `nccl` between NVIDIA GPUs."""


class LinkEntry(Record):
    """One link in a file. 1 GB is 10^9 bytes."""

    title: str
    """Its name for people."""
    backend: Backend
    """What moves the bytes."""
    latency_us: Figure
    """Time of a message of a few KB between neighbours, the software's included."""
    bandwidth_gb_per_s: Figure
    """Bandwidth of long messages, one way."""
    own_sum_us: Figure | None = None
    """Time of a sum of a few KB by host cuda's own kernel over peer memory, with its launch; null: there is none."""
    handover_us: Figure | None = None
    """For messages of GPUs: time from the GPU to the CPU, which sends, and back; null: it is part of the latency."""


class LinkFile(Record):
    """Links by their names."""

    about: str
    """What they share, and where their figures are from."""
    links: Annotated[dict[str, LinkEntry], Field(min_length=1)]
    """The links by their names in commands."""


class Link(LinkEntry):
    """A link with its name."""

    name: str
    """Its name in commands."""
