"""Finds the tokens that end an answer by their names, because GGUF files seldom list more than one of them.

Source: the names are those that llama.cpp knows (llama-vocab.cpp).
"""

from collections.abc import Container, Mapping

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
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
)
_ORDINARY_BESIDE = ("<|tool_response>", "<|plamo:eos|>")
"""Where one of these is, `</s>` is an ordinary token."""
# fmt: off
_PARTS_OF_CODE = (
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
    "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>",
    "▁<MID>", "<|code_middle|>", "<|middle|>",
)
_ENDS_OF_CODE = (
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<REPO>", "<reponame>", "<|file_sep|>",
)
# fmt: on


def end_tokens(special: Mapping[str, int]) -> tuple[int, ...]:
    """The ids among a vocabulary's special tokens (name to id) that end an answer."""
    names = [name for name in _names(special) if name in special]
    # In an answer of several channels, `<|end|>` ends one channel, and another token ends the answer.
    if "<|end|>" in names and ({"<|return|>", "<|call|>"} <= {*names} or {"<|calls|>", "<|flush|>"} <= {*names}):
        names.remove("<|end|>")
    return tuple(special[name] for name in names)


def hidden_tokens(names: Container[str]) -> list[str]:
    """Those of a vocabulary's tokens that are control tokens, whatever a file says of them."""
    return [name for name in (*_names(names), *_PARTS_OF_CODE) if name in names]


def _names(known: Container[str]) -> tuple[str, ...]:
    is_ordinary = any(name in known for name in _ORDINARY_BESIDE)
    return tuple(name for name in (*_NAMES, *_ENDS_OF_CODE) if not (is_ordinary and name == "</s>"))
