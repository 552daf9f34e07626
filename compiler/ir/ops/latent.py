"""Latent attention (MLA): queries are brought into the space of latents, and attend to rows [latent | rotated key].

Source: DeepSeek-V2 (2024), with the products that make keys and values of latents moved to queries and results
("absorbed"): q . (W c) = (W^T q) . c. So all heads read the same row of a token, once.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_cache,
    require_first,
    require_heads,
    require_positive,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.division import WHOLE, Axis, Holdings, require_whole, split
from mlxr.compiler.ir.op_kind import EVERY_STAGE, FUSED_STAGES, Division, OpKind, RopeLayout
from mlxr.compiler.ir.ops.packed_heads import check_rotation
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

_TABLES = ("positions", "query_start", "context_lens", "block_tables")


@dataclass(frozen=True)
class LatentRows(OpKind):
    """The base of the kinds that make the row of each token, and store it.

    Attributes:
        kv_rank, rope_dim: elements of the latent, and of the key after it.
        first: the column of x with which the latent begins.
        rope_layout, rope_scale: see `Rope`.
        eps: added to the mean square by the norm of the latent.
    """

    kv_rank: int
    rope_dim: int
    first: int
    rope_layout: RopeLayout
    rope_scale: float
    eps: float

    def check(self, t: Tensors) -> None:
        """Raises RuleError unless the inputs fit each other and the attributes."""
        width = matrix(t, "x")[1]
        row = self.kv_rank + self.rope_dim
        require_first("first", self.first)
        require(width >= self.first + row, f"x has {width} columns; the latent and its key end at {self.first + row}")
        require_vector(t, "kv_norm", self.kv_rank)
        require_positive("eps", self.eps)
        check_rotation(t, self.rope_dim, self.rope_scale)
        require_cache(t, self.accesses, 1, row)

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Writes the row of each new token."""
        return OpWork(flops=NOT_COUNTED, store_bytes=dims["tokens"] * row_bytes(use.inputs))


class LatentWrite(LatentRows):
    """Makes the row of each token, and stores it."""

    name = "latent_write"
    summary = "[norm(latent) | rope(key)] into its slot of the arena"
    family = "cache"
    inputs = ("x", "kv_norm", "positions", "slots", "frequencies", LATENTS)
    optional = ("token",)
    outputs = ("token",)
    accesses = dict.fromkeys((LATENTS,), "write")
    stages = EVERY_STAGE

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, ...], kv_norm [kv_rank], positions, slots, frequencies, the arena -> token."""
        self.check(t)
        return {"token": TOKEN}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank: each keeps whole rows."""
        require_whole(has, "x", "kv_norm")
        return Division(self, WHOLE)


@dataclass(frozen=True)
class LatentNormWrite(LatentRows):
    """The same, and the norm between the two query projections, where one projection makes both.

    Attributes:
        q_rank: columns of x that are the queries' latent; they come first.
    """

    name = "latent_norm_write"
    summary = "q = norm(queries' latent); [norm(latent) | rope(key)] into its slot of the arena"
    family = "cache"
    inputs = ("x", "q_norm", "kv_norm", "positions", "slots", "frequencies", LATENTS)
    optional = ("token",)
    outputs = ("out", "token")
    accesses = dict.fromkeys((LATENTS,), "write")
    stages = FUSED_STAGES

    q_rank: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """As `LatentWrite`, with q_norm [q_rank] -> out [tokens, q_rank], token."""
        self.check(t)
        require_vector(t, "q_norm", self.q_rank)
        require(self.q_rank <= self.first, f"the latent begins at {self.first}, within the queries' {self.q_rank}")
        return {"out": Tensor((t["x"].shape[0], self.q_rank), t["x"].dtype), "token": TOKEN}


@dataclass(frozen=True)
class HeadMatrices(OpKind):
    """The base of the kinds that multiply each head with a matrix of its own.

    Attributes:
        num_heads: heads.
        head_dim: columns of x from one head to the next, of which the matrices read the first.
        dtype: the type of the result.
    """

    num_heads: int
    head_dim: int
    dtype: DType

    def rows_of(self, t: Tensors) -> int:
        """Rows of a head's matrix; raises RuleError unless x and weight fit."""
        width = matrix(t, "x")[1] - self.skipped
        rows, columns = weight_matrix(t, "weight")
        require(rows % self.num_heads == 0, f"weight has {rows} rows; expected {self.num_heads} equal parts")
        require(columns <= self.head_dim, f"weight has {columns} columns, a head {self.head_dim}")
        require(width >= self.num_heads * self.head_dim, f"x has {width} columns; expected {self.num_heads} heads")
        return rows // self.num_heads

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each token and each element of the weight."""
        rows, columns = weight_matrix(use.inputs, "weight")
        return OpWork(flops=2 * rows * columns * dims["tokens"])

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads."""
        heads = has["x"].columns
        if heads is None:
            require_whole(has, "x", "weight")
            return Division(self, WHOLE)
        own = has["weight"].rows
        require(own is not None and own.of == heads.of, "a rank has matrices of other heads than those of x")
        result = Axis("heads", self.num_heads, self.rows_of(t) + self._added)
        return Division(replace(self, num_heads=heads.count_of(share)), split(result))

    @property
    def skipped(self) -> int:
        """Columns of x before the first head."""
        return 0

    @property
    def _added(self) -> int:
        """Columns of a head's result that come after the product."""
        return 0


@dataclass(frozen=True)
class HeadProduct(HeadMatrices):
    """A product of each head with a matrix of its own.

    Attributes:
        first: the column of x with which the first head begins.
    """

    name = "head_product"
    summary = "x[head] @ weight[head].T of every head"
    family = "matmul"
    inputs = ("x", "weight")
    stages = EVERY_STAGE

    first: int = 0

    @property
    def skipped(self) -> int:
        """See `HeadMatrices`."""
        return self.first

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, first + heads * head_dim or more], weight [heads * rows, columns] -> out.

        out is [tokens, heads * rows].
        """
        require_first("first", self.first)
        return {"out": Tensor((t["x"].shape[0], self.num_heads * self.rows_of(t)), self.dtype)}


@dataclass(frozen=True)
class LatentQueries(HeadMatrices):
    """Queries in the space of rows: a head's product with its matrix, then its rotated part.

    Attributes:
        rope_dim: elements at the end of a head that are rotated, and not multiplied.
        rope_layout, rope_scale: see `Rope`.
    """

    name = "latent_queries"
    summary = "[x[head] @ weight[head].T | rope(rest of x[head])] of every head"
    family = "matmul"
    inputs = ("x", "weight", "positions", "frequencies")
    stages = EVERY_STAGE

    rope_dim: int
    rope_layout: RopeLayout
    rope_scale: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """Like `HeadProduct`, with positions and frequencies -> out [tokens, heads * (rows + rope_dim)]."""
        rows, columns = self.rows_of(t), weight_matrix(t, "weight")[1]
        require(columns + self.rope_dim == self.head_dim, f"{columns} + {self.rope_dim} is not {self.head_dim}")
        check_rotation(t, self.rope_dim, self.rope_scale)
        return {"out": Tensor((t["x"].shape[0], self.num_heads * (rows + self.rope_dim)), self.dtype)}

    @property
    def _added(self) -> int:
        return self.rope_dim


@dataclass(frozen=True)
class LatentAttention(OpKind):
    """Causal attention of queries over their sequence's rows, whose first elements are also the values.

    Attributes:
        num_heads: query heads; all read the same row.
        kv_rank, rope_dim: elements of a row: of the latent, which is the value, and of the key after it.
        scale: factor of the scores.
        temperature_beta, temperature_context: `beta` and `original_context` of a `Temperature`; None for none.
    """

    name = "latent_attention"
    summary = "softmax(scale q row^T) latent over the arena, causal"
    family = "attention"
    inputs: ClassVar[tuple[str, ...]] = ("q", *_TABLES, LATENTS)
    optional: ClassVar[tuple[str, ...]] = ("query_tiles", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((LATENTS,), "read")
    stages = EVERY_STAGE

    num_heads: int
    kv_rank: int
    rope_dim: int
    scale: float
    temperature_beta: float | None = None
    temperature_context: int | None = None

    @property
    def row_dim(self) -> int:
        """Elements of a row, and of a query."""
        return self.kv_rank + self.rope_dim

    @property
    def temperature(self) -> Temperature | None:
        """The temperature; None without one."""
        beta, context = self.temperature_beta, self.temperature_context
        return None if beta is None or context is None else Temperature(beta, context)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q [tokens, heads * row_dim], batch tables, the arena -> out [tokens, heads * kv_rank], token."""
        require_heads(t, "q", self.num_heads, self.row_dim)
        require_positive("scale", self.scale)
        check_temperature(self)
        require_cache(t, self.accesses, 1, self.row_dim)
        return {"out": Tensor((t["q"].shape[0], self.num_heads * self.kv_rank), t["q"].dtype), "token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each query head, key that it sees, and element of the row and of the latent.

        Rows before the step are read, once for each sequence, and those of the step.
        """
        tokens, seqs, context = dims["tokens"], dims["seqs"], dims["context"]
        new = tokens // seqs
        pairs = sum(context - new + 1 + i for i in range(new)) * seqs
        return OpWork(
            flops=2 * self.num_heads * (self.row_dim + self.kv_rank) * pairs,
            store_bytes=((context - new) * seqs + tokens) * row_bytes(use.inputs),
            span=context,
        )

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's query heads, over whole rows."""
        heads = has["q"].columns
        if heads is None:
            require_whole(has, "q")
            return Division(self, WHOLE)
        result = split(Axis("heads", self.num_heads, self.kv_rank))
        return Division(replace(self, num_heads=heads.count_of(share)), result)


def check_temperature(attrs: LatentAttention) -> None:
    """Raises RuleError if only one of the numbers of a temperature is given."""
    both = (attrs.temperature_beta is None) == (attrs.temperature_context is None)
    require(both, "temperature_beta and temperature_context are given together or not at all")


def row_bytes(t: Tensors) -> int:
    """Bytes of a token's row in one layer."""
    return int(t[LATENTS].shape[-1]) * t[LATENTS].dtype.size_bytes
