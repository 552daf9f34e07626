"""The name of an adapter that is given none."""

import re
from pathlib import Path

_MOST_LETTERS = 128
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


def adapter_name(path: str | Path) -> str:
    """That of its folder or file, with dashes for what names of adapters cannot have."""
    path = Path(path)
    own = path.stem if path.suffix == ".gguf" else path.resolve().name
    return _OTHERS.sub("-", own).strip("._-")[:_MOST_LETTERS] or "adapter"
