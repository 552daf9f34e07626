"""Contexts of the kernels that work on rows of activations: norms and the choice of experts."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.rounding import round_up

_QUAD = 4
_QUADS_OF_A_LANE = 4
_MOST_SIMDGROUPS = 32


@dataclass(frozen=True)
class NormKernel(MetalKernel):
    """residual + residual_scale * norm(x) of each of `groups` equal pieces of a row.

    Attributes:
        width: columns of x [tokens, width].
        groups: pieces of a row, each with its own norm.
        kind: rms or layer.
        eps: added to the mean square, or the variance.
        shared: whether the pieces have one weight [width / groups] and not a row's [width].
        weight, bias: their types; no bias: None.
        residual: whether there is one, of x's type.
        residual_scale: factor of the norm where there is.
        activation: type of x and of the result.
    """

    template = "norm.metal.jinja"
    width: int
    groups: int
    kind: str
    eps: float
    shared: bool
    weight: DType
    bias: DType | None
    residual: bool
    residual_scale: float
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds."""
        ports: list[Port] = [("x", self.activation), ("weight", self.weight)]
        if self.bias:
            ports.append(("bias", self.bias))
        if self.residual:
            ports.append(("residual", self.activation))
        return tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.activation),)

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads it uses."""
        return tuple((str(d), _QUAD) for d in (self.activation, self.weight, self.bias) if d)

    @property
    def piece(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def parameters(self) -> int:
        """Elements of the weight, and of the bias."""
        return self.piece if self.shared else self.width

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a piece: a lane holds 16 elements of it, more where the threadgroup is full."""
        wanted = -(-self.piece // (_QUAD * _QUADS_OF_A_LANE * SIMD_WIDTH))
        return min(_MOST_SIMDGROUPS, wanted)

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Groups of 4 elements that a lane holds."""
        return -(-self.piece // (_QUAD * self.threads))

    @property
    def exact(self) -> bool:
        """Whether no lane holds elements past the end."""
        return self.piece == self.quads * self.threads * _QUAD

    @property
    def threadgroup_bytes(self) -> int:
        """Sums of the simdgroups, of the squares and in `layer` of the elements."""
        sums = 2 if self.kind == "layer" else 1
        return 4 * self.simdgroups * sums if self.simdgroups > 1 else 0


@dataclass(frozen=True)
class QkNormKernel(MetalKernel):
    """Norm of the queries and keys of a packed projection; its values are copied.

    Attributes:
        num_heads, num_kv_heads, head_dim: of qkv [tokens, (num_heads + 2 num_kv_heads) * head_dim].
        scope: what is normalised by itself, and the weights: `head` each head, all by one weight [head_dim]; `heads`
            each head, by its part of [heads * head_dim]; `all` the queries as one row, and the keys, by such a weight.
        kind: rms or layer.
        eps: added to the mean square, or the variance.
        q_norm, k_norm: types of the weights.
        q_bias, k_bias: of the biases; without: None.
        activation: type of qkv and of the result.
    """

    template = "qk_norm.metal.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scope: str
    kind: str
    eps: float
    q_norm: DType
    k_norm: DType
    q_bias: DType | None
    k_bias: DType | None
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds."""
        ports: list[Port] = [("qkv", self.activation), ("q_norm", self.q_norm), ("k_norm", self.k_norm)]
        if self.q_bias:
            ports.append(("q_norm_bias", self.q_bias))
        if self.k_bias:
            ports.append(("k_norm_bias", self.k_bias))
        return tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.activation),)

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads it uses."""
        dtypes = (self.activation, self.q_norm, self.k_norm, self.q_bias, self.k_bias)
        return tuple((str(d), _QUAD) for d in dtypes if d)

    @property
    def sides(self) -> tuple[tuple[str, str, DType, DType | None], ...]:
        """Of queries and keys: (first letter, name of the weight, its type, the bias's type)."""
        return (("q", "q_norm", self.q_norm, self.q_bias), ("k", "k_norm", self.k_norm, self.k_bias))

    @property
    def width(self) -> int:
        """Columns of qkv."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def pieces(self) -> int:
        """Pieces of a row, the values among them: heads, or in scope `all` the queries, the keys and the values."""
        return 3 if self.scope == "all" else self.num_heads + 2 * self.num_kv_heads

    @property
    def piece_elements(self) -> int:
        """Elements of the largest piece."""
        return self.num_heads * self.head_dim if self.scope == "all" else self.head_dim

    @property
    def simdgroups(self) -> int:
        """Simdgroups that share a piece: one, except in scope `all`."""
        wanted = -(-self.piece_elements // (_QUAD * _QUADS_OF_A_LANE * SIMD_WIDTH))
        return min(_MOST_SIMDGROUPS, wanted) if self.scope == "all" else 1

    @property
    def pieces_per_threadgroup(self) -> int:
        """Pieces of a threadgroup: as many heads as there are, up to 8; in scope `all` one."""
        return 1 if self.scope == "all" else min(8, self.pieces)

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * self.pieces_per_threadgroup * SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Groups of 4 elements that a lane holds."""
        return -(-self.piece_elements // (_QUAD * self.simdgroups * SIMD_WIDTH))

    @property
    def threadgroup_bytes(self) -> int:
        """Sums of the simdgroups, of the squares and in `layer` of the elements."""
        sums = 2 if self.kind == "layer" else 1
        return 4 * self.simdgroups * sums if self.simdgroups > 1 else 0


@dataclass(frozen=True)
class RouteKernel(MetalKernel):
    """The top_k experts of each token, best first, and their weights.

    Of equal experts the one of the lower index is chosen first, so that a choice does not depend on how lanes share the
    experts (an argpartition promises no order); a logit that is not a number counts as minus infinity. Without a
    selection bias the logits themselves are compared, so that rounding makes no ties; with one, softmax(logits) + bias
    of `softmax_topk`, logits + bias of `topk_softmax`, sigmoid(logits) + bias of `sigmoid`.

    Attributes:
        num_experts: columns of x [tokens, num_experts] f32.
        top_k: experts chosen for a token.
        router: where weights come from: `softmax_topk` softmax over all logits; `topk_softmax` over the chosen ones;
            `sigmoid` the sigmoid of each.
        bias: type of the selection bias [num_experts]; without: None.
        normalise: whether weights are divided by their sum.
        scale: factor of the weights.
    """

    template = "route.metal.jinja"
    num_experts: int
    top_k: int
    router: str
    bias: DType | None
    normalise: bool
    scale: float

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds."""
        return (("x", DType.F32), *((("bias", self.bias),) if self.bias else ()))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Experts and weights."""
        return (("experts", DType.I32), ("weights", DType.F32))

    @property
    def threads(self) -> int:
        """A simdgroup."""
        return SIMD_WIDTH

    @property
    def per_lane(self) -> int:
        """Experts of a lane: number lane + 32 * i."""
        return round_up(self.num_experts, SIMD_WIDTH) // SIMD_WIDTH

    @property
    def whole(self) -> bool:
        """Whether all lanes have as many."""
        return self.num_experts % SIMD_WIDTH == 0

    @property
    def kept(self) -> int:
        """Chosen experts whose weights a lane keeps: lane rank % 32 has those of its ranks."""
        return round_up(self.top_k, SIMD_WIDTH) // SIMD_WIDTH
