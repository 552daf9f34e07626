"""What a source says about its origin."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """What the head of a source says about its origin: no time, host or path."""

    version: str
    spec_name: str
    spec_hash: str
