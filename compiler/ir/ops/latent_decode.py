"""All of a layer's latent attention in a decode step, between its projections."""

from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_cache,
    require_first,
    require_positive,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.op_kind import FUSED_STAGES, RopeLayout
from mlxr.compiler.ir.ops.latent import HeadProduct, LatentAttention, LatentQueries, LatentWrite, check_temperature
from mlxr.compiler.ir.ops.packed_heads import check_rotation
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use


@dataclass(frozen=True)
class LatentDecode(LatentAttention):
    """The row of each new token, the queries in the space of rows, attention, and the products of its results.

    Attributes:
        head_dim: columns of q from one head to the next: those that `k_b` multiplies, then those that are rotated.
        first: the column of kv with which the latent begins.
        rope_layout, rope_scale: see `Rope`.
        eps: added to the mean square by the norm of the latent.
    """

    name = "latent_decode"
    summary = "decode: cache write of a row, RoPE, and attention of one new token a sequence, with the heads' products"
    family = "attention"
    inputs = (
        "q",
        "kv",
        "kv_norm",
        "k_b",
        "v_b",
        "positions",
        "slots",
        "context_lens",
        "block_tables",
        "frequencies",
        LATENTS,
    )
    optional = ("token",)
    outputs = ("out", "token")
    accesses = dict.fromkeys((LATENTS,), "readwrite")
    stages = FUSED_STAGES

    _: KW_ONLY
    head_dim: int
    first: int
    rope_layout: RopeLayout
    rope_scale: float
    eps: float

    @property
    def nope_dim(self) -> int:
        """Columns of a head of q that are multiplied."""
        return self.head_dim - self.rope_dim

    @property
    def write(self) -> LatentWrite:
        """Its write of rows."""
        return LatentWrite(self.kv_rank, self.rope_dim, self.first, self.rope_layout, self.rope_scale, self.eps)

    @property
    def queries(self) -> LatentQueries:
        """Its queries in the space of rows."""
        rotation = (self.rope_dim, self.rope_layout, self.rope_scale)
        return LatentQueries(self.num_heads, self.head_dim, DType.F32, *rotation)

    @property
    def products(self) -> HeadProduct:
        """Its products of the heads' results."""
        return HeadProduct(self.num_heads, self.kv_rank, DType.F32)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q, kv, kv_norm [kv_rank], k_b [heads * kv_rank, nope_dim], v_b [heads * v_dim, kv_rank], the arena.

        Gives out [tokens, heads * v_dim], token.
        """
        width, heads = matrix(t, "q")[1], f"{self.num_heads} x {self.head_dim}"
        require(width >= self.num_heads * self.head_dim, f"q has {width} columns; expected at least {heads}")
        require_first("first", self.first)
        width, end = matrix(t, "kv")[1], self.first + self.row_dim
        require(width >= end, f"kv has {width} columns; the latent and its key end at {end}")
        require_vector(t, "kv_norm", self.kv_rank)
        keys, (rows, columns) = weight_matrix(t, "k_b"), weight_matrix(t, "v_b")
        expected = (self.num_heads * self.kv_rank, self.nope_dim)
        require(keys == expected, f"k_b is {list(keys)}; expected {list(expected)}")
        require(columns == self.kv_rank, f"v_b has {columns} columns; expected {self.kv_rank}")
        require(rows % self.num_heads == 0, f"v_b has {rows} rows; expected {self.num_heads} equal parts")
        require_positive("scale", self.scale)
        require_positive("eps", self.eps)
        check_temperature(self)
        check_rotation(t, self.rope_dim, self.rope_scale)
        require_cache(t, self.accesses, 1, self.row_dim)
        return {"out": Tensor((t["q"].shape[0], rows), t["q"].dtype), "token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """That of attention, and two FLOPs for each token and each element of the heads' matrices."""
        attention = super().work(use, dims)
        sizes = [rows * columns for rows, columns in (weight_matrix(use.inputs, port) for port in ("k_b", "v_b"))]
        products = 2 * sum(sizes) * dims["tokens"]
        return replace(attention, flops=attention.flops + products)
