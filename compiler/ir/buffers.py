"""Names of the buffers that graphs, plans and hosts share: the token of stores, and the layers' numbers."""

ARENA_TOKEN = "arena_token"
"""The token that the previous step's last access made."""


def layer_buffer(layer: int) -> str:
    """The constant buffer that tells a kernel its layer."""
    return f"layer.{layer}"


def layer_prefix(layer: int) -> str:
    """The prefix of the names of a layer's ops, values and tensors: `layers.3.`."""
    return f"layers.{layer}."
