"""Recurrent blocks in a spec: what a layer keeps of a sequence has a fixed size, and each token changes it.

A kind of block is a record here, a function of `mlxr.compiler.build.build_recurrent`, and nothing else: memory, ranks,
formats and families know a block by the properties of `RecurrentBlock`. All layers of a model have the same record.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import Contradictions, Count, Flag
from mlxr.compiler.spec.record import Record

Taps = Annotated[int, Field(ge=2, le=16, strict=True)]
"""Tokens that a convolution reads, the newest included."""


class RecurrentBlock(Record):
    """What all kinds say of themselves."""

    @property
    def units(self) -> int:
        """Of what ranks have some each: heads with all that belongs to them, or channels."""
        raise NotImplementedError(f"{type(self).__name__} does not say its units")

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
        if self.channels % 8:
            low = self.channels // 8 * 8
            wrong.add(
                "channels", f"channels {self.channels} is not a multiple of 8", f"nearest are {low} and {low + 8}"
            )
        wrong.refuse()
        return self

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


Recurrent = ShortConv
"""Any kind of block. With several: Annotated[ShortConv | ..., Field(discriminator="kind")]."""
