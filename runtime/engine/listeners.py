"""Listeners that can be told of several tokens in one call: those of the engine's own callers."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mlxr.runtime.engine.completion import Event


@runtime_checkable
class ListenerOfSeveral(Protocol):
    """A listener for which one call is enough for all that a launch gives its requests.

    It ends no request while it is told.
    """

    def __call__(self, news: Event | BaseException, /) -> object:
        """Takes one event or error."""

    def tell_all(self, events: Sequence[Event], /) -> object:
        """Takes events that end no answer, in their order."""


class Inbox(deque[Event | Sequence[Event] | BaseException]):
    """Events that wait to be taken. To be told is one call of C: Ctrl-C comes before it or after it."""

    __call__ = tell_all = deque.append
