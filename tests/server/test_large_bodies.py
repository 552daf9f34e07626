"""Large requests: they are read beside the loop, in pieces, to the same values as small ones."""

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mlxr.compiler.errors import ChatTemplateError, RequestError
from mlxr.runtime.tokenizer import chat_template, library_tokenizer, sentencepiece_tokenizer
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.server import large_body_route
from mlxr.server.anthropic.messages_request import MessagesRequest
from mlxr.server.chat import control_names
from mlxr.server.chat.control_names import ControlNames
from mlxr.server.errors import ApiError
from mlxr.server.fields import ApiModel, bad_request
from mlxr.server.large_body_route import JsonBytes, read_json, structure, written_in_pieces
from mlxr.server.ollama import chat as ollama
from mlxr.server.openai import chat
from mlxr.server.openai import chat_request as openai
from mlxr.server.openai.completions import CompletionRequest
from mlxr.server.openai.responses_request import ResponsesRequest
from mlxr.server.tokens import DetokenizeRequest, TokenizeRequest
from mlxr_tests.running_server import RunningServer
from mlxr_tests.vocabularies import LANGUAGES, byte_level, metaspace, sentencepiece_model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MANY = large_body_route.MOST_AT_ONCE + 1


@settings(max_examples=60)
@given(value=JSON)
def test_json_in_pieces_is_the_same_json(value: Any) -> None:
    assert read_json(json.dumps(value).encode(), MANY) == value
    assert read_json(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), MANY) == value
    assert json.loads(written_in_pieces({"a": value, "b": [value]})) == {"a": value, "b": [value]}


@pytest.mark.parametrize("wrong", [b"[1,", b'{"a" 1}', b"[1]]", b'"\x01"', b"nul", b"\xff"])
def test_wrong_json_is_wrong_in_pieces_too(wrong: bytes) -> None:
    with pytest.raises(ValueError) as whole:
        json.loads(wrong)
    with pytest.raises(type(whole.value)) as pieces:
        read_json(wrong, MANY)
    assert str(pieces.value) == str(whole.value)


def test_integers_of_small_bodies_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body may have a hundred thousand of 4,000 digits each, in which no other thread would run."""
    read: list[str] = []
    monkeypatch.setattr(large_body_route, "_integer", lambda digits: read.append(digits) or int(digits))
    digits = "7" * 4000
    assert read_json(f'[{digits}, {{"a": -{digits}}}, 1.5]'.encode(), 3) == [int(digits), {"a": -int(digits)}, 1.5]
    assert read == [digits, f"-{digits}"]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity"])
def test_numbers_that_are_not_finite_are_refused(server: RunningServer, number: str) -> None:
    """They would be told again, in the answer and to the model, as what is no JSON."""
    for signs in (1, MANY):
        with pytest.raises(ApiError, match=f"the body has the number {number}, which is not a finite one"):
            read_json(f'{{"a": [1.5e300, {number}]}}'.encode(), signs)
    body = f'{{"model": "tiny", "input": "a", "max_output_tokens": 1, "metadata": {{"a": {number}}}}}'
    answer = server.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and f"the number {number}" in answer.json()["error"]["message"]


def test_long_lists_are_written_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def dumps(value: Any, **more: Any) -> str:
        nonlocal longest
        longest = max(longest, len(value))
        return plain(value, **more)

    plain = json.dumps
    monkeypatch.setattr(json, "dumps", dumps)
    ids = list(range(50_001))
    assert json.loads(written_in_pieces({"count": "50001", "tokens": ids})) == {"count": "50001", "tokens": ids}
    assert longest == 20_000


def test_a_body_has_a_most_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_body_route, "MOST_CONTAINERS", 10)
    assert read_json(b"[" + b"{}," * 8 + b"1]", MANY)
    with pytest.raises(ApiError, match="more than 10 objects and lists"):
        read_json(b"[" + b"{}," * 10 + b"1]", MANY)


@pytest.mark.parametrize(
    ("limit", "fits", "told"),
    [
        ("MOST_VALUES", b'[[1, 2, 3, 4], {"a": 5}, 6, 7, 8]', "more than 10 values"),
        ("MOST_MEMBERS", b"{%s}" % b",".join([b'"a": 1'] * 10), "an object of the body has more than 10 members"),
    ],
)
def test_a_body_has_a_most_of_values(limit: str, fits: bytes, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that an object has twice count, too: all of them are read."""
    monkeypatch.setattr(large_body_route, limit, 10)
    assert read_json(fits, MANY) == json.loads(fits)
    with pytest.raises(ApiError, match=told):
        read_json(fits[:-1] + (b', "a": 1}' if fits.endswith(b"}") else b", 9]"), MANY)


@pytest.mark.parametrize(
    ("request_type", "body"),
    [
        (DetokenizeRequest, {"tokens": [""] * 1000}),
        (DetokenizeRequest, {"tokens": [1]} | dict.fromkeys(map(str, range(1000)), 0)),
        (CompletionRequest, {"model": "m", "prompt": "a", "logit_bias": dict.fromkeys(map(str, range(1000)), "b")}),
        (CompletionRequest, {"model": "m", "prompt": [[1.5] * 1000] * 1000}),
        (openai.ChatRequest, {"model": "m", "messages": [{"a": 1}] * 1000}),
        (openai.ChatRequest, {"model": "m", "messages": [{"role": "user", "content": [{"type": "a"}] * 1000}]}),
        (ollama.ChatRequest, {"model": "m", "messages": [{"a": 1}] * 1000}),
        (MessagesRequest, {"model": "m", "max_tokens": 1, "messages": [{"a": 1}] * 1000}),
        (ResponsesRequest, {"model": "m", "input": [{"a": 1}] * 1000}),
    ],
)
def test_of_many_errors_few_are_collected(request_type: type[ApiModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        request_type.model_validate(body)
    assert 1 <= raised.value.error_count() < 10


def test_a_long_answer_is_sent_in_pieces() -> None:
    data, sent = bytes(range(256)) * 10_000, list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    asyncio.run(JsonBytes(data)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
    assert (b"content-length", b"2560000") in sent[0]["headers"]
    assert b"".join(message["body"] for message in sent[1:]) == data
    assert max(len(message["body"]) for message in sent[1:]) == 1 << 20


def test_where_requests_are_read(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one in the loop; a large one, right or wrong, in another thread, with the same answer."""
    threads: list[threading.Thread] = []

    def read(*given: Any, job_of: bool = False) -> Any:
        threads.append(threading.current_thread())
        return plain_job(*given) if job_of else plain(*given)

    plain, plain_job = large_body_route.read_json, chat.job_of
    monkeypatch.setattr(large_body_route, "read_json", read)
    monkeypatch.setattr(large_body_route, "MOST_IN_LOOP", 10)
    small = {"model": "tiny", "tokens": [1, 2, 3]}
    assert server.http.post("/detokenize", json=small).status_code == 200
    assert threads == [server.do(threading.current_thread)]
    threads.clear()
    large = {"model": "tiny", "tokens": [1, 2, 3] * 5}
    assert structure(json.dumps(small).encode()) <= 10 < structure(json.dumps(large).encode())
    text = server.http.post("/detokenize", json=large).json()["prompt"]
    assert len(text) == 5 and len(threads) == 1
    assert threads[0] is not server.do(threading.current_thread)
    wrong = server.http.post("/detokenize", json=large | {"tokens": [*large["tokens"], "a"]})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "tokens[15]"
    cut = json.dumps(large).encode()[:-1]
    answer = server.http.post("/detokenize", content=cut, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "the body is not JSON: Expecting" in answer.json()["error"]["message"]
    monkeypatch.setattr(chat, "job_of", lambda body: read(body, job_of=True))
    ignored = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}] * 200, "user": "x", "store": True}
    answer = server.http.post("/v1/chat/completions", json=ignored)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert len(threads) == 5 and not any(thread is server.do(threading.current_thread) for thread in threads)


@pytest.mark.parametrize(
    ("request_type", "field", "item", "most"),
    [
        (openai.ChatRequest, "messages", {"role": "user", "content": ""}, 1 << 14),
        (MessagesRequest, "messages", {"role": "user", "content": ""}, 1 << 14),
        (ollama.ChatRequest, "messages", {"role": "user", "content": ""}, 1 << 14),
        (TokenizeRequest, "messages", {"role": "user", "content": ""}, 1 << 14),
        (ResponsesRequest, "input", {"role": "user", "content": ""}, 1 << 14),
        (DetokenizeRequest, "tokens", 1, 1 << 19),
        (TokenizeRequest, "prompt", "a", 4 << 20),
    ],
)
def test_lists_and_texts_have_a_longest_length(request_type: type[ApiModel], field: str, item: Any, most: int) -> None:
    body = {"model": "m", field: item * (most + 1) if isinstance(item, str) else [item] * (most + 1)}
    with pytest.raises(ValidationError) as raised:
        request_type.model_validate(body | ({"max_tokens": 1} if request_type is MessagesRequest else {}))
    assert f"at most {most} " in bad_request(raised.value, {}).message


def test_ids_of_long_texts_of_sentencepiece_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Ids(np.ndarray[Any, Any]):
        def tolist(self) -> Any:
            sizes.append(len(self))
            return super().tolist()

    def encode(text: str, **more: Any) -> Any:
        ids = plain(text, **more)
        return ids.view(Ids) if more else sizes.append(len(ids)) or ids

    tokenizer = SentencepieceTokenizer(sentencepiece_model(), "made")
    text = "it was late, and the fox had gone home"
    expected = tokenizer.encode(text)
    plain = tokenizer._model.encode
    monkeypatch.setattr(tokenizer._model, "encode", encode)
    monkeypatch.setattr(sentencepiece_tokenizer, "_AT_ONCE", 10)
    assert tokenizer.encode(text) == expected
    assert len(sizes) > 1 and max(sizes) == 10


def test_names_are_found_wherever_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ControlNames(["<|end|>", "<s>"])
    monkeypatch.setattr(control_names, "_AT_ONCE", 5)
    for before in range(12):
        for name in ("<|end|>", "<s>"):
            text = "a" * before + name + "b" * 7
            marked = names.marked(text)
            assert name not in marked and names.unmarked(marked) == text
    monkeypatch.setattr(control_names, "_MOST_NAMES", 10)
    names.marked("<s> " * 9)
    with pytest.raises(RequestError, match="a text has 10 names of control tokens or more"):
        names.marked("<s> " * 11)


def test_a_template_is_given_a_most_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MOST_GIVEN", 10)
    with pytest.raises(ChatTemplateError, match=r"a conversation of 15 characters.* at most 10"):
        ChatTemplate("", "made").render_as_is([{"role": "", "content": "abcd"}])


@pytest.mark.parametrize("make", [lambda: byte_level("words", LANGUAGES), metaspace], ids=["byte level", "metaspace"])
def test_long_texts_have_the_ids_of_short_ones(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go to a call that lets other threads run, with and without names of control tokens."""
    library: tokenizers.Tokenizer = make()
    library.add_special_tokens(["<|end|>", tokenizers.AddedToken("<|tool|>", lstrip=True)])
    library.add_tokens(["plain", tokenizers.AddedToken("word", single_word=True)])
    tokenizer = LibraryTokenizer(library, "made")
    text = "A word, words and plain text <|end|> or   <|tool|> é 中 <|end|" * 3
    parts = [text, "<|end|>", "more <|end|> text"]
    expected = [tokenizer.encode(text, parse_special=parse) for parse in (False, True)]
    assert expected[0] != expected[1]
    of_parts = tokenizer.encode_parts(parts)
    monkeypatch.setattr(library_tokenizer, "_LONG", 10)
    assert [tokenizer.encode(text, parse_special=parse) for parse in (False, True)] == expected
    assert tokenizer.encode_parts(parts) == of_parts
