"""Counts with their nouns: 1 token, 2 tokens."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and what it counts.

    Args:
        number: how many.
        noun: the noun in the singular.
        plural: its plural, where that is not the noun and an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
