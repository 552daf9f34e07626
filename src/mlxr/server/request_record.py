"""What is known of one HTTP request, for its line in the log."""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.constraint import unenforced
from mlxr.runtime.engine.time_spent import TimeSpent
from mlxr.server.documents.answers import Told
from mlxr.server.error_outline import outline
from mlxr.server.errors import ApiError

_T = TypeVar("_T", bound=Told)


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request. Whatever works on it adds what it knows.

    Attributes:
        method: of HTTP.
        path: without the query.
        request_id: its name, which the answer's headers have, too.
        trace_id: of the `traceparent` header, so that the line can be found from other programs' traces; empty: none.
        keeps_text: whether texts of users may be kept.
        begin: when it came, by `time.perf_counter`.
        status: of the answer; 0: none was begun.
        model: the model that was asked; empty: none.
        prompt_tokens: of all prompts; a prompt counts once, however many answers it has.
        cached_tokens: how many of these were not computed.
        completion_tokens: of all answers.
        first_token: seconds until the first token; None: there was none.
        loading: seconds that it waited for its model to be loaded.
        spent: where the time of its last answer went, in the engine.
        ended: when that had ended, by `time.perf_counter`.
        owner: whose it is (`cache_owner`).
        finish_reasons: of the answers that ended.
        error: the code of the error that the client was told, in a stream too; empty: none.
        error_message: what it was told, which may quote the request.
        error_param: the field at fault, without names that the client chose; empty: none is.
        error_outline: as much of the message as quotes nothing of the request.
        client_gone: whether the client went before the end.
        not_enforced: what of the request's schemas the answer may violate.
        warnings: what the request asks of a service that this server is not, and what else passed without effect.
        body: of the request, if texts are kept.
        answers: their texts, if texts are kept.
    """

    method: str
    path: str
    request_id: str = ""
    trace_id: str = ""
    keeps_text: bool = False
    begin: float = field(default_factory=time.perf_counter)
    status: int = 0
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None
    loading: float = 0.0
    spent: TimeSpent | None = None
    ended: float = 0.0
    owner: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    error: str = ""
    error_message: str = ""
    error_param: str = ""
    error_outline: str = ""
    client_gone: bool = False
    not_enforced: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    answers: list[str] = field(default_factory=list)

    def add(self, completion: Completion, *, is_first: bool, ended: float = 0.0) -> None:
        """Adds an answer that has ended.

        Args:
            completion: the answer.
            is_first: whether it is the first one of its prompt that ended.
            ended: when, by `time.perf_counter`; 0: now.
        """
        self.add_time(completion, ended)
        if is_first:
            self.prompt_tokens += completion.prompt_tokens
            self.cached_tokens += completion.cached_tokens
        self.completion_tokens += len(completion.token_ids)
        self.finish_reasons.append(str(completion.finish_reason))
        if self.keeps_text:
            self.answers.append(completion.text)

    def add_time(self, completion: Completion, ended: float) -> None:
        """Takes where the time of an answer went that has ended, by `time.perf_counter`; 0: now."""
        if completion.spent is not None:
            self.spent, self.ended = completion.spent, ended or time.perf_counter()

    def add_unfinished(self, tokens: int, prompt_tokens: int, cached_tokens: int, *, is_first: bool) -> None:
        """Adds what was computed of answers that did not end: their client has gone, or the engine failed.

        Args:
            tokens: that were generated.
            prompt_tokens: of their prompt; 0: not known.
            cached_tokens: how many of these were not computed.
            is_first: whether no answer of the prompt has ended.
        """
        self.completion_tokens += tokens
        if is_first:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens


def note_end(event: Event) -> None:
    """Adds where the time of an answer that ends went to the record of the request that the current task works on."""
    if (record := RECORD.get()) is not None and event.completion is not None:
        record.add_time(event.completion, event.time)


def note_error(error: ApiError) -> None:
    """Adds an error to the record of the request that the current task works on."""
    if (record := RECORD.get()) is not None:
        record.error, record.error_message = error.code or error.kind, error.message
        record.error_param, record.error_outline = outline(error)


def note_unenforced(name: str, schema: Mapping[str, Any] | str | bool) -> None:
    """Adds what of a schema will not be enforced to the record of the request that the current task works on.

    Args:
        name: of the schema.
        schema: as a dict, or as text; true: any JSON.

    Raises:
        RequestError: it cannot be read.
    """
    if (record := RECORD.get()) is not None:
        record.not_enforced += [f"{name}: {what}" for what in unenforced(schema)]


def note_warning(text: str) -> None:
    """Adds a warning to the request that the current task works on: its answer, a header and the log tell it, once.

    A request asks for something that this server passes over, and the answer's text is the same without it. What would
    change the text is refused instead.

    Args:
        text: what it is, by the field's name, and what becomes of it; without texts of users.
    """
    if (record := RECORD.get()) is not None and text not in record.warnings:
        record.warnings.append(text)


def note_left_out(place: str, kind: str) -> None:
    """Warns that a tool is left out, since the service that would run it is not here.

    Args:
        place: of the tool, as `tools[2]`.
        kind: its type, which is known to be such a service's.
    """
    note_warning(f"{place} is left out: {kind} is run by a service, which this server does not have")


def noted_warnings() -> list[str]:
    """The warnings of the request that the current task works on.

    In streams, they are in the first object that is sent: by then everything has been noted.
    """
    record = RECORD.get()
    return [] if record is None else list(record.warnings)


def with_warnings(answer: _T) -> _T:
    """An answer with the warnings, if there are any, in its field `warnings`: all APIs have it at the top."""
    noted = noted_warnings()
    return answer.model_copy(update={"warnings": noted}) if noted else answer


RECORD: ContextVar[RequestRecord | None] = ContextVar("request", default=None)
"""The request that the current task works on; None: nobody logs it."""
