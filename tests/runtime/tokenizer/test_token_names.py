"""Names in a text are found from the left, of several at one place the longest."""

import random

from mlxr.runtime.tokenizer.token_names import names_pattern


def found(text: str, names: set[str]) -> list[str]:
    """The same by trying all."""
    parts, place, start = [], 0, 0
    while place < len(text):
        here = max((name for name in names if name and text.startswith(name, place)), key=len, default="")
        if here:
            parts += [text[start:place], here]
            start = place + len(here)
        place += len(here) or 1
    return [*parts, text[start:]]


def test_the_longest_name_is_found() -> None:
    chance = random.Random(1)
    for _ in range(300):
        names = {"".join(chance.choices("<|a>", k=chance.randint(0, 12))) for _ in range(chance.randint(0, 12))}
        text = "".join(chance.choices([*names, "<|", "a", ">", "<|a>"], k=20))
        assert names_pattern(names).split(text) == found(text, names), (names, text)
