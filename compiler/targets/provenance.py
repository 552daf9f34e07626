"""The origin of a source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """The origin that the head of a source states: no time, host or path."""

    version: str
    spec_name: str
    spec_hash: str
