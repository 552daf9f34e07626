"""The newest requests to models, as the log tells of them, for `GET /requests`; without texts of users."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 512
_LEFT_OUT = ("body", "answers", "differing_tokens", "message")


@dataclass
class RecentRequests:
    """Requests that have ended, by their names. A client sees those of its own key alone."""

    _requests: OrderedDict[tuple[str, str], dict[str, Any]] = field(default_factory=OrderedDict)

    def add(self, owner: str, fields: Mapping[str, Any]) -> None:
        """Keeps a request; of two of the same name, the newer one.

        Args:
            owner: whose it is, as `cache_owner.owner` says.
            fields: its line in the log.
        """
        key = owner, str(fields["request_id"])
        self._requests.pop(key, None)
        self._requests[key] = {"time": time.time()} | {k: v for k, v in fields.items() if k not in _LEFT_OUT}
        while len(self._requests) > _MOST:
            self._requests.popitem(last=False)

    def get(self, owner: str, request_id: str) -> dict[str, Any] | None:
        """A request of this owner; None: there is none of that name."""
        return self._requests.get((owner, request_id))

    def newest(self, owner: str, most: int, model: str = "") -> list[dict[str, Any]]:
        """The newest requests of this owner, the newest one first; `model`: of that model alone."""
        own = (told for (whose, _), told in reversed(self._requests.items()) if whose == owner)
        return [told for told in own if not model or told["model"] == model][:most]
