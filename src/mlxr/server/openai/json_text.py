"""JSON as short as it gets."""

import json
from collections.abc import Mapping
from typing import Any


def dumped(value: Any) -> str:
    """The JSON text of a value."""
    return json.dumps(value, separators=(",", ":"))


def dumped_fields(fields: Mapping[str, Any]) -> str:
    """The JSON text of fields that others follow, with a comma after each."""
    return "".join(f"{dumped(name)}:{dumped(value)}," for name, value in fields.items())
