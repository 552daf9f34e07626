"""Values of JSON as messages quote them: in JSON's words, not Python's."""

import json
from typing import Any

_MOST = 60


def quoted_json(value: Any) -> str:
    """A value as JSON, cut after 60 characters; of a long list no more is written than is shown.

    Args:
        value: of JSON; anything else in it is shown as a text.
    """
    value = value[:_MOST] if isinstance(value, str) else value
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, skipkeys=True, check_circular=False, default=str).iterencode(
        value
    ):
        text += piece
        if len(text) >= _MOST:
            break
    return text[:_MOST]
