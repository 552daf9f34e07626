"""Prompts for what stands between two texts: of published vocabularies, as llama.cpp's server writes them for /infill.

The texts and numbers of tokens are what its `prompt` and `tokens_evaluated` told of models with these vocabularies.
"""

import pytest

from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr_tests.real_files import LLAMA_CPP, TOKENIZERS, real_file, real_folder

GAPS = [
    Gap("def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"),
    Gap("x = 1\n    ya", ""),
    Gap("a <fim_suffix> b", "<|endoftext|>\t\tÄ"),
]
NAMES = {
    "starcoder": ("", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "deepseek-coder": ("<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
}
TOKENS = {"starcoder": (25, 9, 20), "deepseek-coder": (27, 10, 24)}


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_llama_cpp(name: str) -> None:
    tokenizer = load_tokenizer(real_folder(LLAMA_CPP) / f"ggml-vocab-{name}.gguf")
    bos, before, hole, end = NAMES[name]
    for gap, tokens in zip(GAPS, TOKENS[name], strict=True):
        prompt = infill_prompt(tokenizer, gap)
        control = tokenizer.control_ids
        spelled = [tokenizer.token_text(i).encode() if i in control else tokenizer.bytes_of(i) for i in prompt.ids]
        assert b"".join(spelled).decode() == f"{bos}{before}{gap.prefix}{hole}{gap.suffix}{end}"
        assert len(prompt.ids) == tokens and not prompt.is_cut
        in_order = [tokenizer.token_text(i) for i in prompt.ids if i in prompt.ends]
        assert in_order == [before, hole, end], "names in the texts are text"


def test_other_files_stand_before_the_prefix() -> None:
    gap = Gap("", " tail", [("x.py", "import os\n"), ("y.py", "# y\n")])
    tokenizer = load_tokenizer(real_folder(LLAMA_CPP) / "ggml-vocab-deepseek-coder.gguf")
    text = "\n\n--- snippet ---\n\nimport os\n\n\n--- snippet ---\n\n# y\n"
    prompt = infill_prompt(tokenizer, gap)
    assert tokenizer.decode(prompt.ids) == f"{text}<｜fim▁begin｜><｜fim▁hole｜> tail<｜fim▁end｜>"
    assert len(prompt.ids) == 29
    tokenizer = load_tokenizer(real_file(TOKENIZERS["qwen3"], "tokenizer.json"))  # it says of these names: text
    spelled = "".join(tokenizer.token_text(i) for i in infill_prompt(tokenizer, gap).ids)
    assert spelled.startswith("<|repo_name|>myprojectĊ<|file_sep|>x.pyĊimportĠosĊ<|file_sep|>y.pyĊ#ĠyĊ<|file_sep|>")
    assert spelled.endswith("filenameĊ<|fim_prefix|><|fim_suffix|>Ġtail<|fim_middle|>")
