"""How long a model stays loaded after a request, as Ollama's clients say it."""

import re

from mlxr.server.errors import bad_field, quoted_json
from mlxr.server.pool.model_pool import FOREVER

KeepAlive = str | float | int | None
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_LONGEST = 100 * 365 * 86400.0
"""What is longer is for ever: no clock tells when it would end."""
_NUMBER = re.compile(r"\d+(\.\d*)?")


def seconds_of(keep_alive: KeepAlive) -> float | None:
    """Seconds; None: the server decides.

    Args:
        keep_alive: a number of seconds, or a text such as `5m` or `1h30m`; less than 0, or a hundred years: for ever.

    Raises:
        ApiError: it is no time.
    """
    if keep_alive is None:
        return None
    if isinstance(keep_alive, str):
        text = keep_alive.strip()
        is_negative, digits = text.startswith("-"), text.lstrip("+-")
        if _NUMBER.fullmatch(digits):
            seconds = float(digits)
        elif digits and not _PART.sub("", digits):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(digits))
        else:
            raise bad_field(
                "keep_alive",
                f"keep_alive is {quoted_json(keep_alive)}; expected seconds, a time such as 10m, or -1 for ever",
            )
        keep_alive = -seconds if is_negative else seconds
    return float(keep_alive) if 0 <= keep_alive <= _LONGEST else FOREVER
