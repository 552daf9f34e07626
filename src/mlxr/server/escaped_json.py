"""JSON responses in ASCII."""

import json
from typing import Any

from starlette.responses import JSONResponse


class EscapedJson(JSONResponse):
    """JSON whose other characters are escaped: what a client has sent and gets back may be no valid Unicode."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
