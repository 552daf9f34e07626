"""Events of streams that have their type as their name, too, as those of Anthropic and of /v1/responses do."""

from mlxr.server.documents.answers import Told
from mlxr.server.documents.json_form import Form, json_form, json_text


class NamedEvent(Told):
    """An event."""

    type: str


def event_text(event: NamedEvent) -> bytes:
    """An event as it is sent."""
    return f"event: {event.type}\ndata: {json_text(event)}\n\n".encode()


def event_form(example: NamedEvent, *holes: str) -> Form:
    """What writes events that are like an example but for some fields; see `json_form`."""
    return json_form(example, *holes, before=f"event: {example.type}\ndata: ", after="\n\n")
