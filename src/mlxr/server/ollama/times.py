"""Points in time, as Ollama's API writes them."""

from datetime import UTC, datetime

NEVER = "9999-12-31T23:59:59Z"
"""What is written for a time that never comes."""


def written(seconds: float | None = None) -> str:
    """A time in UTC.

    Args:
        seconds: since 1970; None: now.
    """
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.isoformat().replace("+00:00", "Z")
