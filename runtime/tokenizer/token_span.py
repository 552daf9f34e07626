"""How much text a token can stand for, from which a text has a least number of tokens without being encoded.

The bound must hold for every text. So only tokenizers that certainly leave out no text have one. For those that may
leave out white space, only the other characters count.
"""

from dataclasses import dataclass

_WHITE_SPACE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\u2581" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""White space of Python, Rust or sentencepiece; U+2581 stands for a space in pieces."""


@dataclass(frozen=True)
class TokenSpan:
    """What a token can stand for.

    Attributes:
        characters: most characters of a text.
        drops_white_space: whether some white space may have no token.
    """

    characters: int
    drops_white_space: bool = False

    def least_tokens(self, text: str) -> int:
        """The least number of tokens that a text can have."""
        count = len(text)
        if self.drops_white_space:
            count -= sum(text.count(sign) for sign in _WHITE_SPACE)  # calls that others can run between
        return -(-count // self.characters)
