"""Types of arguments for argparse, which say in words what is wrong with an argument."""

import argparse
from pathlib import Path

from mlxr.hub.reference import without_hub

_UNITS = {"k": 1 << 10, "m": 1 << 20}


def model_name(text: str) -> str:
    """MODEL: an address of the hub's becomes ORG/REPO, and everything else stays as it is."""
    return text if Path(text).exists() else without_hub(text)


def token_count(text: str) -> int:
    """A number of tokens: 8192, or 8k for it, as models are named (128k is 131072).

    Raises:
        ArgumentTypeError: it is no whole number.
    """
    unit = _UNITS.get(text[-1:].lower(), 1)
    number = text if unit == 1 else text[:-1]
    try:
        return int(number) * unit
    except ValueError as error:
        message = f"{text!r} is not a whole number of tokens, such as 8192 or 8k"
        raise argparse.ArgumentTypeError(message) from error


def text_argument(text: str) -> str:
    """An argument that is text.

    Raises:
        ArgumentTypeError: it is not UTF-8.
    """
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise argparse.ArgumentTypeError("the text is not UTF-8")
    return text
