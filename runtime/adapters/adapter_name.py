"""The name of an adapter that is given none."""

from pathlib import Path


def adapter_name(path: str | Path) -> str:
    """That of its folder or file."""
    path = Path(path)
    return path.stem if path.suffix == ".gguf" else path.resolve().name
