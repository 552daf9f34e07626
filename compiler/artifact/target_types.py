"""The element types of a target's activations and cache, with the reasons."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.record import Record


class TargetTypes(Record):
    """The types of one target.

    Attributes:
        target: its name: `metal` (hosts metal, cuda and sim), `cpu`, ...
        activations: the type of buffers between kernels; sums are in f32.
        cache: the type of cached keys and values.
        activations_because, cache_because: the reasons, for people.
    """

    target: str
    activations: DType
    cache: DType
    activations_because: str
    cache_because: str

    def __str__(self) -> str:
        return f"activations {self.activations} ({self.activations_because}), cache {self.cache} ({self.cache_because})"
