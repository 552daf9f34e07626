"""A number of tokens, as people write it."""

import argparse

_UNITS = {"k": 1 << 10, "m": 1 << 20}


def token_count(text: str) -> int:
    """The number that a text says, for argparse: 8192, or 8k for it, as models are named (128k is 131072)."""
    unit = _UNITS.get(text[-1:].lower(), 1)
    number = text if unit == 1 else text[:-1]
    try:
        return int(number) * unit
    except ValueError as error:
        message = f"{text!r} is not a whole number of tokens, such as 8192 or 8k"
        raise argparse.ArgumentTypeError(message) from error
