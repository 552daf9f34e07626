"""Ollama's `options`: how tokens are chosen, by Ollama's names; what is left out is as the model's own files say."""

from typing import Any

from pydantic import Field

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.errors import ApiError, bad_field, quoted_json
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.openai.sampling_fields import ANY_OBJECT, check_schema, seed_of, share_of

_UNTIL_THE_END = (-1, -2)
"""Values of `num_predict` for an answer that nothing but the context limits."""
_MOST_TOP = 20
_USUAL_RANGE = 64
"""How many tokens Ollama's `repeat_penalty` counts if `repeat_last_n` does not say."""

_INSTEAD = {
    "options.mirostat": "use temperature with top_p or min_p; 0 (off) is taken",
    "options.tfs_z": "use min_p; 1 (off) is taken",
    "options.penalize_newline": "line breaks are penalised as all tokens are; leave it out, or the penalties",
}
"""Options that can only be off, each with what to do instead."""


class OllamaLoadOptions(ApiModel):
    """Options of how a model is loaded, which is the server's affair, not a request's."""

    num_ctx: int | None = Field(default=None, ge=0)
    """Longest context that the client counts on; 0: what the model was loaded with. See `ModelPool.use`."""

    num_keep: WithoutEffect = None
    numa: WithoutEffect = None
    num_batch: WithoutEffect = None
    num_gpu: WithoutEffect = None
    main_gpu: WithoutEffect = None
    low_vram: WithoutEffect = None
    f16_kv: WithoutEffect = None
    logits_all: WithoutEffect = None
    vocab_only: WithoutEffect = None
    use_mmap: WithoutEffect = None
    use_mlock: WithoutEffect = None
    embedding_only: WithoutEffect = None
    num_thread: WithoutEffect = None


class Options(OllamaLoadOptions):
    """The `options` of a request for an answer."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    mirostat: int | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None
    mirostat_tau: WithoutEffect = None
    mirostat_eta: WithoutEffect = None


class EmbedOptions(OllamaLoadOptions):
    """The `options` of a request for embeddings: those of answers say nothing here."""

    num_predict: WithoutEffect = None
    temperature: WithoutEffect = None
    top_k: WithoutEffect = None
    top_p: WithoutEffect = None
    min_p: WithoutEffect = None
    typical_p: WithoutEffect = None
    repeat_penalty: WithoutEffect = None
    repeat_last_n: WithoutEffect = None
    presence_penalty: WithoutEffect = None
    frequency_penalty: WithoutEffect = None
    seed: WithoutEffect = None
    stop: WithoutEffect = None
    mirostat: WithoutEffect = None
    mirostat_tau: WithoutEffect = None
    mirostat_eta: WithoutEffect = None
    tfs_z: WithoutEffect = None
    penalize_newline: WithoutEffect = None


def context_of(options: OllamaLoadOptions | None) -> int | None:
    """The context that a request counts on; None: it does not say."""
    return (options.num_ctx or None) if options is not None else None


def sampling_of(
    options: Options | None, form: Any = None, logprobs: bool | None = None, top_logprobs: int | None = None
) -> Sampling:
    """The engine's options.

    Args:
        options: of the request.
        form: its `format`: `json`, a schema, or nothing.
        logprobs: whether log probabilities are asked for.
        top_logprobs: of how many tokens.

    Raises:
        ApiError: an option with a value that is not served.
        RequestError: a value outside its range.
    """
    options = options or Options()
    penalties = (options.repeat_penalty or 1) - 1, options.presence_penalty, options.frequency_penalty
    for name, is_on in (
        ("mirostat", bool(options.mirostat)),
        ("tfs_z", options.tfs_z is not None and options.tfs_z < 1),
        ("penalize_newline", options.penalize_newline is False and any(penalties)),
    ):
        if is_on:
            place = f"options.{name}"
            message = f"{place} is {quoted_json(getattr(options, name))}, which is not supported: {_INSTEAD[place]}"
            raise ApiError(400, message, param=place, code="unsupported_field")
    if top_logprobs is not None and not (logprobs and 0 <= top_logprobs <= _MOST_TOP):
        raise bad_field("top_logprobs", f"top_logprobs is {top_logprobs}; expected 0 to {_MOST_TOP}, with logprobs")
    given: dict[str, Any] = {
        "max_tokens": _most(options.num_predict),
        "temperature": options.temperature,
        "top_k": None if options.top_k is None else max(0, options.top_k),
        "top_p": share_of(options.top_p),
        "repetition_penalty": options.repeat_penalty,
        "logprobs": (top_logprobs or 0) if logprobs else None,
    }
    if options.repeat_last_n == 0:
        given["repetition_penalty"] = 1.0
    elif options.repeat_last_n is not None:
        given["repetition_range"] = max(0, options.repeat_last_n)  # -1 is all
    elif options.repeat_penalty is not None:
        given["repetition_range"] = _USUAL_RANGE
    for name in ("min_p", "typical_p", "presence_penalty", "frequency_penalty", "stop"):
        given[name] = getattr(options, name)
    if options.seed is not None and options.seed != -1:  # -1: a new one each time
        given["seed"] = seed_of(options.seed, "options.seed")
    if form:
        given["json_schema"] = ANY_OBJECT if form == "json" else form
        check_schema("format", given["json_schema"])
    options_given = {name: value for name, value in given.items() if value is not None}
    return Sampling.of_model(**({"max_tokens": None} | options_given))


def _most(num_predict: int | None) -> int | None:
    if num_predict is None or num_predict in _UNTIL_THE_END:
        return None
    if num_predict < 1:
        raise bad_field(
            "options.num_predict", f"options.num_predict is {num_predict}; expected 1 or more, or -1 for no limit"
        )
    return num_predict
