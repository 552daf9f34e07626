"""Answers of /infill, in the form of llama.cpp's server."""

from typing import Literal

from mlxr.server.documents.answers import Told


class InfillTimings(Told):
    """How long an answer took. Tokens of the prompt that the prefix cache had are not counted in `prompt_n`."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Infill(Told):
    """An answer, or the last record of a stream, whose `content` is empty."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: InfillTimings
    warnings: list[str] | None = None


class InfillPiece(Told):
    """Another record of a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    tokens_predicted: int
    tokens_evaluated: int
