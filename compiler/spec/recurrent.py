"""Recurrent blocks in a spec: what a layer keeps of a sequence has a fixed size, and each token changes it.

A kind of block is a record here, a function of `mlxr.compiler.build.build_recurrent`, and nothing else: memory, ranks,
formats and families know a block by the properties of `RecurrentBlock`. All layers of a model have the same record.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import Contradictions, Count, Flag, Positive
from mlxr.compiler.spec.record import Record

Taps = Annotated[int, Field(ge=2, le=16, strict=True)]
"""Tokens that a convolution reads, the newest included."""


class RecurrentBlock(Record):
    """What all kinds say of themselves."""

    @property
    def in_words(self) -> str:
        """What it is, for people: `6 heads of Mamba-2`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it is")

    @property
    def units(self) -> int:
        """Of what ranks have some each: heads with all that belongs to them, or channels."""
        raise NotImplementedError(f"{type(self).__name__} does not say its units")

    @property
    def tiles(self) -> int:
        """Equal parts of the result's columns, each of which has columns of all units, in their order."""
        return 1

    @property
    def result_width(self) -> int:
        """Columns of its last projection, `recurrent.o`: as many of each unit."""
        raise NotImplementedError(f"{type(self).__name__} does not say the width of its result")

    @property
    def widest(self) -> int:
        """Columns of its widest activation, of projections that are joined into one."""
        raise NotImplementedError(f"{type(self).__name__} does not say its widest activation")

    @property
    def conv_row(self) -> tuple[int, int] | None:
        """What its convolution keeps of a sequence: channels, and inputs of each; None without one."""
        return None

    @property
    def conv_whole(self) -> int:
        """The last channels of its convolution that every rank has; of the others each has those of its units."""
        return 0

    @property
    def state_row(self) -> tuple[int, ...] | None:
        """What else it keeps of a sequence; the first axis counts units, or as many of each; None for nothing."""
        return None

    @property
    def dimensions(self) -> dict[str, int]:
        """The numbers that sizes in family files may name, besides those of all models; see `DIMENSIONS`."""
        return {}

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Its matrices by their roles, such as `recurrent.o`: rows (outputs) and columns (inputs)."""
        raise NotImplementedError(f"{type(self).__name__} does not say its matrices")


class ShortConv(RecurrentBlock):
    """A gated short convolution: out(c * conv(b * x)), and b, c and x are projections of the block's input.

    The convolution has a filter of its own for each channel and reads the newest `taps` tokens.
    """

    kind: Literal["conv"]
    """`conv`: a gated short convolution."""
    channels: Count
    """Columns of b, c and x: a multiple of 8."""
    taps: Taps
    """Tokens that the convolution reads, the newest included: 2 to 16."""
    conv_bias: Flag = False
    """Whether the convolution adds a bias."""
    bias: Flag = False
    """Whether the projections add a bias."""

    @model_validator(mode="after")
    def _check(self) -> "ShortConv":
        wrong = Contradictions()
        wrong.check_multiple("channels", self.channels, 8)
        wrong.refuse()
        return self

    @property
    def in_words(self) -> str:
        """Its channels."""
        return f"short convolutions of {self.channels} channels"

    @property
    def units(self) -> int:
        """Channels."""
        return self.channels

    @property
    def result_width(self) -> int:
        """One column of each channel."""
        return self.channels

    @property
    def widest(self) -> int:
        """That of b, c and x together."""
        return 3 * self.channels

    @property
    def conv_row(self) -> tuple[int, int]:
        """The inputs before the newest one, of each channel."""
        return self.channels, self.taps - 1

    @property
    def dimensions(self) -> dict[str, int]:
        """The channels."""
        return {"channels": self.channels}

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """The four projections."""
        into = {f"recurrent.{role}": (self.channels, hidden) for role in ("b", "c", "x")}
        return into | {"recurrent.o": (hidden, self.channels)}


class GatedDelta(RecurrentBlock):
    """A gated delta net: each head keeps a matrix, which a token decays, and corrects where its key points.

    Queries, keys, values, a gate, decays and corrections' rates are projections of the block's input. The first three
    pass a short convolution with silu; the result of each head is normalised and multiplied by its activated gate.
    """

    kind: Literal["delta"]
    """`delta`: a gated delta net."""
    num_heads: Count
    """Heads of values, and of states: a multiple of num_key_heads."""
    num_key_heads: Count
    """Heads of queries and of keys; each serves as many neighbouring heads of values."""
    key_dim: Count
    """Elements of a query and of a key: a multiple of 4."""
    value_dim: Count
    """Elements of a value: a multiple of 4."""
    taps: Taps
    """Tokens that the convolution reads, the newest included: 2 to 16."""
    tiled: Flag = False
    """Whether a key serves every num_key_heads-th head of values, as GGUF files have them, and not neighbours."""
    channel_decays: Flag = False
    """Whether each element of a key decays by a number of its own (KDA), and not all of a head by one."""
    rank: Count | None = None
    """Width between two projections that make the decays, and two that make the gate: a multiple of 8; null for one
    projection of each."""
    gate: Literal["silu", "sigmoid"] = "silu"
    """The function of the gate."""

    @model_validator(mode="after")
    def _check(self) -> "GatedDelta":
        wrong = Contradictions()
        if self.num_heads % self.num_key_heads:
            what = f"num_heads {self.num_heads} is not a multiple of num_key_heads {self.num_key_heads}"
            wrong.add("num_heads", what, f"nearest is {-(-self.num_heads // self.num_key_heads) * self.num_key_heads}")
        wrong.check_multiple("key_dim", self.key_dim, 4)
        wrong.check_multiple("value_dim", self.value_dim, 4)
        if self.rank is not None:
            wrong.check_multiple("rank", self.rank, 8)
        wrong.refuse()
        return self

    @property
    def in_words(self) -> str:
        """Its heads."""
        return f"{self.num_heads} heads of gated delta nets"

    @property
    def decays(self) -> int:
        """Numbers by which a token's states decay."""
        return self.num_heads * (self.key_dim if self.channel_decays else 1)

    @property
    def keys(self) -> int:
        """Columns of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def units(self) -> int:
        """Heads of keys, with the values that they serve."""
        return self.num_key_heads

    @property
    def tiles(self) -> int:
        """Heads of values that share a key, where these lie apart."""
        return self.num_heads // self.num_key_heads if self.tiled else 1

    @property
    def result_width(self) -> int:
        """The values of all heads."""
        return self.num_heads * self.value_dim

    @property
    def widest(self) -> int:
        """That of all projections of the block's input together."""
        own = self.result_width + self.decays if self.rank is None else 2 * self.rank
        return 2 * self.keys + self.result_width + self.num_heads + own

    @property
    def conv_row(self) -> tuple[int, int]:
        """The inputs before the newest one, of queries, keys and values."""
        return 2 * self.keys + self.result_width, self.taps - 1

    @property
    def state_row(self) -> tuple[int, int, int]:
        """A matrix of each head."""
        return self.num_heads, self.key_dim, self.value_dim

    @property
    def dimensions(self) -> dict[str, int]:
        """Heads, their elements and the taps."""
        heads = {"key_heads": self.num_key_heads, "value_heads": self.num_heads}
        ratio = {"values_per_key": self.num_heads // self.num_key_heads}
        return heads | ratio | {"key_dim": self.key_dim, "value_dim": self.value_dim, "taps": self.taps}

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """The seven projections, or nine."""
        widths = {"q": self.keys, "k": self.keys, "v": self.result_width, "beta": self.num_heads}
        own = {"z": self.result_width, "decay": self.decays}
        if self.rank is None:
            shapes = {role: (width, hidden) for role, width in (widths | own).items()}
        else:
            shapes = {role: (width, hidden) for role, width in widths.items()}
            for role, width in own.items():
                shapes |= {f"{role}_a": (self.rank, hidden), f"{role}_b": (width, self.rank)}
        return {f"recurrent.{role}": shape for role, shape in shapes.items()} | {
            "recurrent.o": (hidden, self.result_width)
        }


class Ssm(RecurrentBlock):
    """Mamba-2: heads keep a matrix, which decays by a number of the token and takes in an outer product.

    o(norm(scan(silu(conv([x; B; C])), dt) * silu(z))), and z, x, B, C and dt are projections of the block's input.
    """

    kind: Literal["ssm"]
    """`ssm`: Mamba-2."""
    num_heads: Count
    """Heads."""
    head_dim: Count
    """Elements of x and of the result in each head."""
    num_groups: Count = 1
    """Groups of heads; those of one share B and C."""
    state_dim: Count
    """Elements of B and of C: a multiple of 4."""
    taps: Taps = 4
    """Tokens that the convolution reads, the newest included: 2 to 16."""
    conv_bias: Flag = True
    """Whether the convolution adds a bias."""
    bias: Flag = False
    """Whether the first projections add a bias."""
    output_bias: Flag = False
    """Whether the last projection adds a bias."""
    norm: Flag = True
    """Whether the result is normalised, by groups, with the epsilon of the model's norms."""
    norm_before_gate: Flag = False
    """Whether z's silu multiplies the norm's result, and not what is normalised."""
    least_step: Annotated[float, Field(ge=0, strict=True)] = 0.0
    """The least dt."""
    most_step: Positive | None = None
    """The greatest dt; null for any."""

    @model_validator(mode="after")
    def _check(self) -> "Ssm":
        wrong = Contradictions()
        if self.num_heads % self.num_groups:
            what = f"{self.num_heads} heads are not {self.num_groups} equal groups"
            wrong.add("num_groups", what, "use a number that divides num_heads")
        wrong.check_multiple("state_dim", self.state_dim, 4)
        if self.norm_before_gate and not self.norm:
            wrong.add("norm_before_gate", "there is no norm", "leave it out")
        wrong.refuse()
        return self

    @property
    def in_words(self) -> str:
        """Its heads."""
        return f"{self.num_heads} heads of Mamba-2"

    @property
    def inner(self) -> int:
        """Columns of x, of z and of the result."""
        return self.num_heads * self.head_dim

    @property
    def shared_width(self) -> int:
        """Columns of B, and as many of C."""
        return self.num_groups * self.state_dim

    @property
    def units(self) -> int:
        """Groups, each of which is normalised as a whole; heads, where there is one group.

        A norm before the gate is not that of parts.
        """
        return self.num_groups if self.norm_before_gate or self.num_groups > 1 else self.num_heads

    @property
    def result_width(self) -> int:
        """That of x."""
        return self.inner

    @property
    def widest(self) -> int:
        """That of z, x, B, C and dt together."""
        return 2 * self.inner + 2 * self.shared_width + self.num_heads

    @property
    def conv_row(self) -> tuple[int, int]:
        """The inputs before the newest one, of each channel: those of x, of B and of C."""
        return self.inner + 2 * self.shared_width, self.taps - 1

    @property
    def conv_whole(self) -> int:
        """B and C of the only group, whose heads are divided."""
        return 2 * self.shared_width if self.units > self.num_groups else 0

    @property
    def state_row(self) -> tuple[int, int, int]:
        """A matrix of each head."""
        return self.num_heads, self.head_dim, self.state_dim

    @property
    def dimensions(self) -> dict[str, int]:
        """The widths of the parts that files have as one tensor, and the taps."""
        return {"inner": self.inner, "shared_state": self.shared_width, "steps": self.num_heads, "taps": self.taps}

    def matrices(self, hidden: int) -> dict[str, tuple[int, int]]:
        """The six projections."""
        widths = {"z": self.inner, "x": self.inner, "b": self.shared_width, "c": self.shared_width}
        into = {f"recurrent.{role}": (width, hidden) for role, width in (widths | {"step": self.num_heads}).items()}
        return into | {"recurrent.o": (hidden, self.inner)}


Recurrent = Annotated[ShortConv | GatedDelta | Ssm, Field(discriminator="kind")]
"""Any kind of block."""
