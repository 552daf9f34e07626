"""Tokens that end an answer, by what they are called: GGUF files seldom name more than one of them.

Source: the names are those that llama.cpp knows (llama-vocab.cpp).
"""

from collections.abc import Mapping

_NAMES = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
)


def end_tokens(special: Mapping[str, int]) -> tuple[int, ...]:
    """The ids among a vocabulary's special tokens (name to id) that end an answer."""
    names = [name for name in _NAMES if name in special]
    # Where an answer has several channels, `<|end|>` ends one of them, and others the whole.
    if "<|end|>" in names and ({"<|return|>", "<|call|>"} <= {*names} or {"<|calls|>", "<|flush|>"} <= {*names}):
        names.remove("<|end|>")
    return tuple(special[name] for name in names)
