"""How templates write thoughts. They are small ones in the form of published ones."""

import pytest

from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.thinking_form import ThinkingForm, find_thinking

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.KEY %}OPENING{{ m.KEY }}CLOSING{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>GENERATION{% endif %}"
)
QWEN = ("reasoning_content", "<think>\n", "\n</think>\n\n", "")
FORMS = [
    (QWEN, ("<think>\n", "\n</think>\n\n", "</think>")),
    (("thinking", "<think>", "</think>", "<think>"), ("<think>", "</think>", "</think>")),
    (("reasoning", "<seed:think>", "</seed:think>\n", ""), ("<seed:think>", "</seed:think>\n", "</seed:think>")),
    (
        ("reasoning_content", "<|think|>", "<|end|><|begin|>assistant<|content|>", ""),
        ("<|think|>", "<|end|><|begin|>assistant<|content|>", "<|end|>"),
    ),
    (("unknown", "[THINK]", "[/THINK]", ""), ("[THINK]", "[/THINK]", "[/THINK]")),
    (("unknown", "", "", "<think>\n"), ("<think>\n", "\n</think>\n\n", "</think>")),
    (("unknown", "", "", ""), None),
]


@pytest.mark.parametrize(("parts", "expected"), FORMS)
def test_the_texts_around_a_thought(parts, expected):
    text = TURNS
    for name, part in zip(("KEY", "OPENING", "CLOSING", "GENERATION"), parts, strict=True):
        text = text.replace(name, part)
    with ChatTemplate(text, "here") as template:
        assert find_thinking(template) == (None if expected is None else ThinkingForm(*expected))
