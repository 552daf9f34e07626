"""How much text a token can stand for: this bounds the tokens of a text from below without encoding it.

The bound must hold for every text. So it is known only of tokenizers of which it is known that they leave out no text;
those that may leave out white space get a bound by what is not white space.
"""

from dataclasses import dataclass

_WHITE_SPACE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\u2581" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What Python, Rust or sentencepiece call so; U+2581 stands for a space in pieces."""


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
        """A number of tokens than which a text has no fewer."""
        count = len(text)
        if self.drops_white_space:
            count -= sum(map(text.count, _WHITE_SPACE))
        return -(-count // self.characters)
