"""Large requests: they are read beside the loop, in pieces, to the same values as small ones."""

import json
import threading
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from mlxr.runtime.tokenizer import library_tokenizer
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.server import large_body_route
from mlxr.server.errors import ApiError
from mlxr.server.large_body_route import read_json, structure, written_in_pieces
from mlxr_tests.running_server import RunningServer
from mlxr_tests.vocabularies import byte_level, metaspace

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MANY = large_body_route.MOST_AT_ONCE + 1


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


def test_where_requests_are_read(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one in the loop; a large one, right or wrong, in another thread, with the same answer."""
    threads: list[threading.Thread] = []

    def read(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return plain(*given)

    plain = large_body_route.read_json
    monkeypatch.setattr(large_body_route, "read_json", read)
    small = {"model": "tiny", "tokens": [1, 2, 3]}
    assert server.http.post("/detokenize", json=small).status_code == 200 and not threads
    large = {"model": "tiny", "tokens": [1, 2, 3] * 5000}
    assert structure(json.dumps(large).encode()) > large_body_route.MOST_IN_LOOP
    text = server.http.post("/detokenize", json=large).json()["prompt"]
    assert len(text) == 5000 and len(threads) == 1
    assert threads[0] is not server.do(threading.current_thread)
    wrong = server.http.post("/detokenize", json=large | {"tokens": [*large["tokens"], "a"]})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "tokens[15000]"
    cut = json.dumps(large).encode()[:-1]
    answer = server.http.post("/detokenize", content=cut, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "the body is not JSON: Expecting" in answer.json()["error"]["message"]
    ignored = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}] * 4000, "user": "x", "store": True}
    answer = server.http.post("/v1/chat/completions", json=ignored)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert len(threads) == 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
def test_conversations_have_a_most_of_messages(server: RunningServer, path: str) -> None:
    messages = [{"role": "user", "content": ""}] * 16_385
    body = {"model": "tiny", "max_tokens": 1} if path == "/v1/messages" else {"model": "tiny"}
    answer = server.http.post(path, json=body | {"input" if "responses" in path else "messages": messages})
    assert answer.status_code == 400 and "at most 16384 items" in answer.text


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/tokenize", {"prompt": "a" * ((4 << 20) + 1)}, "at most 4194304 characters"),
        ("/detokenize", {"tokens": [1] * ((1 << 20) + 1)}, "at most 1048576 items"),
    ],
)
def test_texts_to_count_have_a_longest_length(
    server: RunningServer, path: str, body: dict[str, Any], most: str
) -> None:
    answer = server.http.post(path, json=body | {"model": "tiny"})
    assert answer.status_code == 400 and most in answer.text


@pytest.mark.parametrize("make", [lambda: byte_level("words"), metaspace], ids=["byte level", "metaspace"])
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
