"""JSON as short as it gets."""

import json
from typing import Any


def dumped(value: Any) -> str:
    """The JSON text of a value."""
    return json.dumps(value, separators=(",", ":"))
