"""The spec of a head of the model's own that guesses further tokens (multi-token prediction, MTP)."""

from mlxr.compiler.spec.fields import Flag
from mlxr.compiler.spec.record import Record


class Mtp(Record):
    """One more layer behind the model's own, its number num_layers, which guesses the token after the next one.

    It reads the row after the model's final norm and the embedding of the token that follows: each normalised, side by
    side, and projected to hidden_size. Its layer is like the last one. To guess further tokens, it reads its own rows.
    """

    hidden_first: Flag = False
    """Whether the row comes before the embedding in what is projected."""
    norm: Flag = True
    """Whether it has a norm of its own before the output projection; else it uses the model's final norm."""
