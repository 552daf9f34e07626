"""Finds the tokens that end an answer by their names, because GGUF files seldom list more than one of them.

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
    # In an answer of several channels, `<|end|>` ends one channel, and another token ends the answer.
    if "<|end|>" in names and ({"<|return|>", "<|call|>"} <= {*names} or {"<|calls|>", "<|flush|>"} <= {*names}):
        names.remove("<|end|>")
    return tuple(special[name] for name in names)
