"""Links between the machines of a model that is split: the known ones by name, and the schema of their figures."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.artifact.chip import Figure
from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated
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


def find_link(name: str) -> Link:
    """A link by its name, in upper or lower case.

    Raises:
        PlanError: no link has that name; the message lists the known ones.
    """
    links = known_links()
    by_lower_case = {known.lower(): link for known, link in links.items()}
    if name.lower() not in by_lower_case:
        like = nearest(name, tuple(links))
        hint = f'; did you mean "{like}"?' if like else ""
        raise PlanError(f"there is no link {name!r}; known links are {', '.join(links)}{hint}")
    return by_lower_case[name.lower()]


@cache
def known_links() -> dict[str, Link]:
    """Every link by name, in the order of the file."""
    path = Path(str(resources.files("mlxr.compiler.chips"))) / "links" / "links.yaml"
    return links_of(path.read_text(encoding="utf-8"), str(path))


def links_of(text: str, source: str) -> dict[str, Link]:
    """The links in a file.

    Args:
        text: the YAML.
        source: the file's name in error messages.

    Raises:
        SpecError: the file does not describe links; the message shows every problem with its place.
    """
    file = validated(LinkFile, read_document(text, source))
    return {name: Link(name=name, **dict(entry)) for name, entry in file.links.items()}
