"""Latent attention (MLA) in a spec: keys and values of all heads are made of one short row of each token.

Invariants after validation: all sizes are multiples of 8.
"""

from typing import Annotated

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import Contradictions, Epsilon
from mlxr.compiler.spec.record import Record

Rank = Annotated[int, Field(ge=16, le=65536, strict=True)]
Part = Annotated[int, Field(ge=8, le=512, strict=True)]
_SIZES = ("kv_rank", "q_rank", "nope_dim", "rope_dim", "v_dim")
_MOST_ROW = 1024


class Latent(Record):
    """A token's row in the cache is its latent, kv_rank elements, and one rotated key, rope_dim elements.

    A head's key is its product with the latent, nope_dim elements, and the rotated key, which all heads share; its
    value is another product, v_dim elements. Where `rope` is null, nothing is rotated; all else is the same.
    """

    kv_rank: Rank
    """Elements of the latent: a multiple of 8."""
    q_rank: Rank | None = None
    """Width between the two query projections, with a norm there; null for one projection."""
    nope_dim: Part
    """Elements of a head's query and key that are not rotated; they come first."""
    rope_dim: Part
    """Elements of a head's query and key that are rotated."""
    v_dim: Part
    """Elements of a head's value."""
    eps: Epsilon | None = None
    """As `model.norm.eps`, of the norms of the latent and between the query projections; null for the same number."""

    @model_validator(mode="after")
    def _check(self) -> "Latent":
        wrong = Contradictions()
        for name in _SIZES:
            size = getattr(self, name)
            if size is not None:
                wrong.check_multiple(name, size, 8)
        if self.row_dim > _MOST_ROW:
            wrong.add("kv_rank", f"kv_rank {self.kv_rank} + rope_dim {self.rope_dim} is more than {_MOST_ROW}")
        wrong.refuse()
        return self

    @property
    def qk_dim(self) -> int:
        """Elements of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def row_dim(self) -> int:
        """Elements of a token's row in the cache."""
        return self.kv_rank + self.rope_dim
