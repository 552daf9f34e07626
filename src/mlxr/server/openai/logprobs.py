"""Log probabilities of answers, in the two forms of OpenAI's API."""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted

from mlxr.runtime.engine.completion import TokenLogprob
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.documents.json_form import json_form
from mlxr.server.documents.openai_answers import ChatLogprobs, ChatToken, TextLogprobs, TopToken

_LEAST = -9999.0
"""What clients get for a probability of 0: JSON has no infinity."""


def chat_logprobs(tokenizer: Tokenizer | None, tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The form of chat."""
    return ChatLogprobs(content=[chat_token(tokenizer, token) for token in tokens], refusal=None)


def chat_token(tokenizer: Tokenizer | None, token: TokenLogprob) -> ChatToken:
    """A token in the form of chat."""
    top = [TopToken(*_entry(tokenizer, *each)) for each in token.top]
    return ChatToken(*_entry(tokenizer, token.token_id, token.logprob), top)


def chat_logprobs_text(tokenizer: Tokenizer | None, token: TokenLogprob) -> str:
    """The JSON text of `chat_logprobs` of one token."""
    return _CHAT_LOGPROBS(f"[{chat_token_text(chat_token(tokenizer, token))}]")


def chat_token_text(token: ChatToken) -> str:
    """The JSON text of a token in the form of chat."""
    return _CHAT_TOKEN(*_texts(token), f"[{','.join([_TOP(*_texts(top)) for top in token.top_logprobs])}]")


def _texts(token: TopToken) -> tuple[str, float, str]:
    return quoted(token.token), token.logprob, f"[{','.join(map(str, token.bytes))}]"


def _entry(tokenizer: Tokenizer | None, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
    data = bytes_of(tokenizer, token_id)
    return _text(tokenizer, token_id, data), max(logprob, _LEAST), list(data)


_TOP = json_form(TopToken(token="", logprob=0.0, bytes=[]), "token", "logprob", "bytes")
_CHAT_TOKEN = json_form(
    ChatToken(token="", logprob=0.0, bytes=[], top_logprobs=[]), "token", "logprob", "bytes", "top_logprobs"
)
_CHAT_LOGPROBS = json_form(ChatLogprobs(content=[], refusal=None), "content")


def completion_logprobs(
    tokenizer: Tokenizer | None, tokens: Sequence[TokenLogprob | None], ids: Sequence[int], offset: int
) -> TextLogprobs:
    """The form of completions.

    Args:
        tokenizer: of the model.
        tokens: of each token; None for the first of a prompt, which nothing precedes.
        ids: of the tokens.
        offset: characters of text before the first of them.
    """
    texts: list[str] = []
    offsets: list[int] = []
    for token_id in ids:
        texts.append(token_name(tokenizer, token_id))
        offsets.append(offset)
        offset += len(texts[-1])
    return TextLogprobs(
        tokens=texts,
        token_logprobs=[None if token is None else max(token.logprob, _LEAST) for token in tokens],
        top_logprobs=[None if token is None else _by_name(tokenizer, token) for token in tokens],
        text_offset=offsets,
    )


def _by_name(tokenizer: Tokenizer | None, token: TokenLogprob) -> dict[str, float]:
    names: dict[str, float] = {}
    for token_id, logprob in _with_own(token):
        names.setdefault(token_name(tokenizer, token_id), max(logprob, _LEAST))  # of equal names the most probable
    return names


def _with_own(token: TokenLogprob) -> Sequence[tuple[int, float]]:
    """The most probable tokens, and the token itself if it is not one of them."""
    if any(token_id == token.token_id for token_id, _ in token.top):
        return token.top
    return [*token.top, (token.token_id, token.logprob)]


def token_name(tokenizer: Tokenizer | None, token_id: int) -> str:
    """A token's text; of a part of a character, `bytes:` and its bytes as escapes."""
    return _text(tokenizer, token_id, bytes_of(tokenizer, token_id))


def bytes_of(tokenizer: Tokenizer | None, token_id: int) -> bytes:
    """The bytes of a token's text; none without a tokenizer."""
    if tokenizer is None or token_id >= tokenizer.vocab_size:
        return b""
    return tokenizer.bytes_of(token_id)


def _text(tokenizer: Tokenizer | None, token_id: int, data: bytes) -> str:
    if not data:
        return tokenizer.token_text(token_id) if tokenizer is not None and token_id < tokenizer.vocab_size else ""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
