"""What importing an encoder means: it gives rows and no logits, and reads many texts in a step."""

from dataclasses import replace

from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.import_rules import ImportRules

_TEXTS = 64
"""Texts of a step at least: they are as long as they are, and nothing is kept of them."""


def is_encoder(rules: ImportRules) -> bool:
    """Whether models of an architecture see whole texts."""
    return rules.set.get("attention.causal") is False


def of_encoder(options: ImportOptions) -> ImportOptions:
    """The options with what any encoder needs."""
    return replace(options, output="hidden", max_sequences=max(options.max_sequences, _TEXTS), mtp=False)
