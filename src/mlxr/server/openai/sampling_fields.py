"""The fields that chat and completions share: how tokens are chosen, and where answers end."""

import json
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.errors import ApiError, bad_field, quoted_json
from mlxr.server.fields import ApiModel, NotServed, WithoutEffect, first_wrong
from mlxr.server.pool.chosen_adapter import ask_adapters
from mlxr.server.request_record import note_unenforced

Stop = str | Annotated[list[str], Field(max_length=64)] | None
_MOST_SCHEMA = 1 << 20
_LEAST_SHARE = 1e-9
ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""What `json_object` and Ollama's `json` ask for: clients parse the answer as a JSON object."""
_STRUCTURES = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}


class Terms(TypedDict):
    """How the engine treats a request; see `mlxr.Engine.generate`."""

    priority: int
    deadline: float | None
    salt: str


class StreamOptions(ApiModel):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: WithoutEffect = None


class StructuredOutputs(ApiModel):
    """What the answer's text must match, as vLLM names it."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class LoraScale(ApiModel):
    """An adapter, by its number, and by what it is multiplied."""

    id: int = Field(ge=0)
    scale: float


def note_adapters(lora: list[LoraScale] | None) -> None:
    """Notes for this task which adapters its request asks for."""
    ask_adapters(None if lora is None else [(entry.id, entry.scale) for entry in lora])


class SamplingFields(ApiModel):
    """Fields of OpenAI, and of vLLM after `seed`."""

    model: str
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(first_wrong)] = Field(None, max_length=1 << 16)
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: WithoutEffect = None
    store: NotServed = None
    metadata: NotServed = None
    service_tier: NotServed = None
    prompt_cache_key: NotServed = None
    prompt_cache_retention: NotServed = None
    safety_identifier: WithoutEffect = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=1024)
    best_of: int | None = None
    """How many candidates there are for the answers: as many as `n`, so that there is nothing to choose."""
    include_stop_str_in_output: bool | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = None
    cache_salt: str | None = None
    lora: list[LoraScale] | None = Field(None, max_length=256)
    """llama.cpp's: which adapter the request uses, by its number in /lora-adapters."""
    deadline: float | None = None
    """Seconds after which the answer ends with what it has."""

    # SGLang's, which sglang-router and vllm-router add to each request with these values.
    no_stop_trim: Literal[False] | None = None
    skip_special_tokens: Literal[True] | None = None
    return_hidden_states: Literal[False] | None = None

    def terms(self) -> Terms:
        """How the engine treats the request; its adapters are noted for this task."""
        note_adapters(self.lora)
        return Terms(priority=self.priority or 0, deadline=self.deadline, salt=self.cache_salt or "")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


def sampling_of(fields: SamplingFields, **others: Any) -> Sampling:
    """The engine's options; those that the request does not name are the model's own.

    Args:
        fields: of a request.
        others: options that the API has under names of its own; None: not given.

    Raises:
        ApiError: two constraints, or a field that contradicts another.
        RequestError: a value outside its range.
    """
    if fields.stream_options is not None and not fields.stream:
        raise bad_field("stream_options", "stream_options is for streams: set stream, or leave it out")
    if fields.wants_running_usage and not fields.wants_usage:
        raise bad_field("stream_options", "stream_options.continuous_usage_stats needs include_usage: set that as well")
    if fields.best_of not in (None, fields.n or 1):
        message = (
            f"best_of is {fields.best_of}, and n is {fields.n or 1}: ask for n answers and choose, or leave it out"
        )
        raise ApiError(400, message, param="best_of", code="unsupported_field")
    given: dict[str, Any] = {
        "temperature": fields.temperature,
        "max_tokens": fields.max_tokens,
        "n": fields.n,
        "seed": seed_of(fields.seed),
        "stop": [fields.stop] if isinstance(fields.stop, str) else fields.stop,
        "stop_tokens": fields.stop_token_ids or None,
        "include_stop": fields.include_stop_str_in_output,
        "logit_bias": None if fields.logit_bias is None else _biases(fields.logit_bias),
    }
    given["top_p"] = share_of(fields.top_p)
    for name in ("frequency_penalty", "presence_penalty", "min_p", "typical_p", "repetition_penalty"):
        given[name] = getattr(fields, name)
    for name in ("min_tokens", "ignore_eos", "dry_multiplier", "dry_base", "dry_allowed_length"):
        given[name] = getattr(fields, name)
    given["top_k"] = all_of(fields.top_k)
    given |= others
    constraints = _constraints(fields)
    if len({*constraints, *(name for name in ("json_schema",) if given.get(name) is not None)}) > 1 or (
        constraints and given.get("json_schema") is not None
    ):
        raise ApiError(400, "the answer can follow one of response_format, guided_* and structured_outputs only")
    options = {name: value for name, value in (given | constraints).items() if value is not None}
    form = getattr(fields, "response_format", None)
    if form is not None and form.json_schema is not None and form.json_schema.strict:
        options["strict"] = True
    return Sampling.of_model(**({"max_tokens": None} | options))


def all_of(top_k: int | None) -> int | None:
    """`Sampling.top_k` of a request: vLLM's word for all is -1."""
    return 0 if top_k == -1 else top_k


def share_of(top_p: float | None) -> float | None:
    """`Sampling.top_p` of a request: the APIs take 0, which leaves the most probable token alone."""
    return _LEAST_SHARE if top_p == 0 else top_p


def seed_of(seed: int | None, name: str = "seed") -> int | None:
    """`Sampling.seed` of a request: any number of 64 bits, with a sign or without.

    Args:
        seed: it.
        name: of the field.

    Raises:
        ApiError: a number that has more bits.
    """
    if seed is None or -(2**63) <= seed < 2**64:
        return None if seed is None else seed % 2**64
    raise bad_field(name, f"{name} is too large: expected a whole number of at most 64 bits")


def response_schema(response_format: "ResponseFormat | None") -> dict[str, Any] | bool | None:
    """`Sampling.json_schema` of a response format."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return ANY_OBJECT
    if response_format.json_schema is None:
        raise bad_field("response_format.json_schema", "response_format.json_schema is missing: it is required")
    schema = response_format.json_schema.schema_
    if schema is None:
        return True
    check_schema("response_format.json_schema.schema", schema, strict=bool(response_format.json_schema.strict))
    return schema


class JsonSchema(ApiModel):
    """A schema with its name."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(ApiModel):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _constraints(fields: SamplingFields) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, option in _STRUCTURES.items():
        if (value := getattr(fields, f"guided_{name}")) is not None:
            given[f"guided_{name}"] = (option, value)
    if (structured := fields.structured_outputs) is not None:
        for name, option in _STRUCTURES.items():
            value = structured.json_ if name == "json" else getattr(structured, name)
            if value is not None:
                given[f"structured_outputs.{name}"] = (option, value)
        if structured.json_object:
            given["structured_outputs.json_object"] = ("json_schema", ANY_OBJECT)
    if len(given) > 1:
        raise ApiError(400, f"{' and '.join(given)} are given; an answer follows one of them: drop the others")
    for name, (option, value) in given.items():
        if option == "json_schema":
            check_schema(name, value)
    return dict(given.values())


def check_schema(name: str, schema: Any, *, strict: bool = False) -> None:
    """Refuses a schema that is too long, and notes what of it will not be enforced.

    Args:
        name: of the field.
        schema: as a dict, or as text; None: there is none.
        strict: whether it will be refused instead.

    Raises:
        ApiError: it is too long.
        RequestError: it cannot be read.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    if len(text) > _MOST_SCHEMA:
        raise bad_field(name, f"{name} has {len(text)} characters, more than the {_MOST_SCHEMA} that a schema may have")
    if schema is not None and not strict:
        note_unenforced(name, schema)


def _biases(biases: dict[str, float]) -> dict[int, float]:
    for token in biases:
        if not (token.isascii() and token.isdigit() and len(token) < 20):
            raise bad_field("logit_bias", f"logit_bias has the key {quoted_json(token)}; expected token ids")
    return {int(token): bias for token, bias in biases.items()}
