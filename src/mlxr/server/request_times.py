"""The time of an HTTP request, divided by what it was spent on: the server's part, and the engine's (`TimeSpent`)."""

from typing import TYPE_CHECKING, Any

from mlxr.runtime.engine.time_spent import CAUSES

if TYPE_CHECKING:
    from mlxr.server.request_record import RequestRecord

SERVER_CAUSES = {
    "loading": "waiting for the model to be loaded",
    "preparing": "reading the request, filling the chat template, making tokens",
    "sending": "waiting for the client to take an answer that had ended",
}
ALL_CAUSES: dict[str, str] = SERVER_CAUSES | {str(cause): words for cause, words in CAUSES.items()}
"""What a request's time is divided by, each in words."""


def divided(record: "RequestRecord", total: float) -> dict[str, float]:
    """Seconds by cause, the greatest first; they add up to the whole time. Of several answers, the last one counts.

    Args:
        record: what is known of the request.
        total: its seconds.
    """
    parts: dict[str, float] = {"loading": record.loading}
    if (spent := record.spent) is not None:
        in_engine = spent.total + spent.seconds.get("grammar", 0.0)
        parts |= {str(cause): seconds for cause, seconds in spent.seconds.items()}
        # The engine divides the time up to the moment when it lets go, which is a little after the answer's last event.
        parts["preparing"] = max(0.0, record.ended - record.begin - record.loading - in_engine)
        parts["sending"] = total - record.loading - parts["preparing"] - in_engine
    else:
        parts["preparing"] = total - record.loading
    return dict(sorted(((name, part) for name, part in parts.items() if part > 0), key=lambda item: -item[1]))


def time_fields(record: "RequestRecord", total: float) -> dict[str, Any]:
    """What a request's line in the log says of its time, in milliseconds, and of what the prefix cache lacked."""
    parts = divided(record, total)
    fields: dict[str, Any] = {
        "slowest": next(iter(parts), None),
        "spent_ms": {name: round(1000 * seconds, 3) for name, seconds in parts.items()},
    }
    if (spent := record.spent) is not None:
        fields |= {"missed_tokens": spent.missed_tokens, "differs_at": spent.differs_at}
        if record.keeps_text and spent.differing is not None:
            fields["differing_tokens"] = list(spent.differing)
    return fields
