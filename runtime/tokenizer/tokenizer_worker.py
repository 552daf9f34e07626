"""Tries the steps of a tokenizer.json, as the script of a `LimitedProcess`. It imports nothing of MLXR.

The steps come with a vocabulary of single characters in place of the model's own, which they do not depend on.

Question: `{"steps", "texts"}`, where steps are the parts of a tokenizer.json by their names; answer: `{"error"}`, which
is empty if each text was encoded and decoded.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

IS_SEALED = True


def answerer() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The function that answers questions."""
    vocabulary = {"?": 0} | {chr(i): i for i in range(32, 127) if chr(i) != "?"}
    model = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="?")).to_str())

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(model | question["steps"]))
            for text in question["texts"]:
                tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # the library's own panics are no Exceptions
            return {"error": str(error)[:300]}
        return {"error": ""}

    answer({"steps": {}, "texts": ["a"]})  # what it reads when it is used first
    return answer
