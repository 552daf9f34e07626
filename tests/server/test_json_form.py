"""Functions that write documents."""

import json

import pytest

from mlxr.server.documents.json_form import json_form, json_form_in_two
from mlxr.server.documents.openai_chunks import CallDelta, ChatDelta, FunctionDelta, TextChunk, TextChunkChoice

_TEXT = "{a}%s\\ \"'\n"
"""Signs that mean something in the ways to fill in a text."""


def test_a_document_with_holes_is_that_document() -> None:
    example = TextChunk(
        id=_TEXT,
        object="text_completion",
        created=1,
        model="m",
        system_fingerprint=_TEXT,
        choices=[TextChunkChoice(index=0, text="", logprobs=None, finish_reason=None)],
    )
    head, rest = json_form_in_two(example, ("created", "model"), ("text", "finish_reason"), after="\n\n")
    told = rest(head("7", json.dumps(_TEXT)), json.dumps(_TEXT), '"stop"')
    choice = {"index": 0, "text": _TEXT, "logprobs": None, "finish_reason": "stop"}
    assert told.endswith("}]}\n\n") and json.loads(told) == {
        "id": _TEXT,
        "object": "text_completion",
        "created": 7,
        "model": _TEXT,
        "system_fingerprint": _TEXT,
        "choices": [choice],
    }
    TextChunk.model_validate_json(told)


def test_fields_that_were_not_given_are_left_out() -> None:
    calls = [CallDelta(index=number, function=FunctionDelta(arguments="")) for number in (0, 1)]
    assert json_form(ChatDelta(tool_calls=calls))() == (
        '{"tool_calls":[{"index":0,"function":{"arguments":""}},{"index":1,"function":{"arguments":""}}]}'
    )
    assert json_form(ChatDelta())() == "{}"
    with pytest.raises(ValueError, match=r"ChatDelta has the holes \['content'\], not \['content', 'role'\]"):
        json_form(ChatDelta(content=""), "content", "role")
