"""Whether packed weights are mapped from a file, or in memory."""

from typing import Literal

Mmap = Literal["auto", "on", "off"]
"""`auto`: mapped where they do not fit into memory, where packing takes long, and where their file is there already."""
