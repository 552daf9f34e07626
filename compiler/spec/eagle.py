"""The spec of a head that other files bring for a model, and that guesses further tokens: EAGLE-3."""

from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.spec.attention import Attention
from mlxr.compiler.spec.fields import INT32_MAX, MAX_LAYERS, Contradictions, Count, Epsilon, Flag
from mlxr.compiler.spec.mlp import Mlp
from mlxr.compiler.spec.record import Record
from mlxr.compiler.spec.rope import Rope

NUM_TAPS = 3
_Tap = Annotated[int, Field(ge=0, le=MAX_LAYERS, strict=True)]


class Eagle(Record):
    """One more layer behind the model's own, its number num_layers, which guesses the token after the next one.

    It has widths, norms and a vocabulary of its own. A token's row is the model's residual stream before three of its
    layers, side by side, and projected to hidden_size. Attention reads the embedding of the token that follows and the
    row, each normalised, side by side; its result and the MLP's are added to the row. To guess further tokens, it takes
    the sum as the next token's row.
    """

    taps: Annotated[tuple[_Tap, ...], Field(min_length=NUM_TAPS, max_length=NUM_TAPS)]
    """Numbers of the layers before which the residual stream is read; num_layers: behind the last one."""
    tap_norm: Literal["all", "each"] | None = None
    """Norms before the projection to hidden_size: of `all` three together, or of `each`; null for none."""
    hidden_size: Count
    """Width of its rows and embeddings: a multiple of 8."""
    vocab_size: Count
    """How many tokens it may guess; its files say which ones of the model's."""
    eps: Epsilon = 1e-5
    """Added to the mean square in its norms, which are rms norms."""
    rope: Rope | None = Rope()
    """As `model.rope`."""
    attention: Attention
    """As `model.attention`; head_dim must be given."""
    mlp: Mlp
    """As `model.mlp`."""
    norm_residual: Flag = False
    """Whether the row is added to as it is normalised; else as it is."""
    norm_rows: Flag = False
    """Whether its own rows, from which it guesses further tokens, are normalised as for the output projection."""
    embedding: Flag = False
    """Whether it has an embedding table of its own; else it takes the model's."""
    output: Flag = True
    """Whether it has an output projection of its own; else it takes the model's."""

    def check(self, num_layers: int, hidden_size: int, vocab_size: int, wrong: Contradictions) -> None:
        """Notes what cannot be, of a model with so many layers, columns and tokens."""
        wrong.check_multiple("eagle.hidden_size", self.hidden_size, 8, "kernels read 16 bytes at a time")
        if max(self.taps) > num_layers:
            wrong.add("eagle.taps", f"{list(self.taps)} are more than {num_layers}, the number of layers")
        if not self.embedding and self.hidden_size != hidden_size:
            what = f"the model's embeddings have {hidden_size} columns, the head's hidden_size is {self.hidden_size}"
            wrong.add("eagle.embedding", what, "set it to true, if its files have a table")
        if not self.output and (self.hidden_size, self.vocab_size) != (hidden_size, vocab_size):
            what = f"the model's is {vocab_size} x {hidden_size}, the head needs {self.vocab_size} x {self.hidden_size}"
            wrong.add("eagle.output", what, "set it to true, if its files have an output projection")
        if self.attention.latent is not None or self.attention.kv_from is not None or self.mlp.experts is not None:
            wrong.add("eagle", "a head has no latent attention, keys of other layers, or experts", "leave eagle out")
        if self.rope is not None:
            self.rope.check(self.attention.rope_dim, "eagle.rope", wrong)
        for key, width in self.mlp.widths:
            wrong.check_multiple(f"eagle.mlp.{key}", width, 8, "kernels read 16 bytes at a time")
        widest = max(2 * self.attention.packed_width, 2 * self.mlp.intermediate_size, 3 * hidden_size)
        if widest * self.hidden_size > INT32_MAX or self.vocab_size * self.hidden_size > INT32_MAX:
            wrong.add("eagle.hidden_size", "a matrix of the head has more than 2^31 - 1 elements")

    @property
    def widest(self) -> int:
        """Columns of what its layer reads."""
        return 2 * self.hidden_size
