"""Which tensors of a weight file make up each weight that the kernels read.

Part of the plan. A packed weight is the concatenation along axis 0 of its parts, in order, so that one launch can read
several projections as one matrix; a weight of one part is that tensor.
"""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.dtypes import DType
from mlxr.compiler.formats import WeightFormat


@dataclass(frozen=True)
class TensorSource:
    """One tensor of a weight file, by its name in each format."""

    name: str
    """Canonical name, e.g. `layers.0.attention.q`."""
    shape: tuple[int, ...]
    """Shape expected in the file, outermost dimension first."""
    safetensors: str
    """Name in safetensors files, e.g. `model.layers.0.self_attn.q_proj.weight`."""
    gguf: str
    """Name in GGUF files, e.g. `blk.0.attn_q.weight`."""
    gguf_transform: Literal["unpermute_rope"] | None = None
    """What undoes a GGUF file's own layout; `unpermute_rope` separates the interleaved rotary pairs of each head."""
    heads: int | None = None
    """Heads among the rows, for `unpermute_rope`."""
    format: WeightFormat = WeightFormat.F32
    """How the spec has it held in memory."""


@dataclass(frozen=True)
class WeightPlan:
    """One weight as the kernels of the metal target read it, and as the graph has its numbers."""

    name: str
    """Name of the buffer in the plan's launches."""
    shape: tuple[int, ...]
    dtype: DType
    parts: tuple[TensorSource, ...]
    """Concatenated along axis 0, in this order."""
