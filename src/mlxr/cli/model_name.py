"""What people write for a model."""

from pathlib import Path

from mlxr.hub.reference import without_hub


def model_name(text: str) -> str:
    """MODEL, for argparse: an address of the hub's becomes ORG/REPO, and everything else stays as it is."""
    return text if Path(text).exists() else without_hub(text)
