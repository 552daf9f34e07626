"""Fetches models from a hub (huggingface.co, or another one that speaks its protocol) through huggingface_hub.

Only files that MLXR reads are fetched: weights, config.json, the tokenizer's and the templates; never code, and no
pickles. They go into huggingface_hub's own cache, where other programs find them too. Nothing that was fetched is run.
"""

from mlxr.compiler.errors import MlxrError


class HubError(MlxrError):
    """A model that cannot be fetched from the hub."""
