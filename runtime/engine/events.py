"""The events of a call of an engine, for a thread."""

from collections.abc import Callable, Iterator

from mlxr.runtime.engine.call import Call
from mlxr.runtime.engine.completion import Event


class Events(Iterator[Event]):
    """The events of a call, for a thread. `close`, or the last reference to it, cancels what is left of the call."""

    def __init__(self, call: Call, leave: Callable[[Call], None]) -> None:
        """See `EngineThread.stream`.

        Args:
            call: whose events.
            leave: cancels the call.
        """
        self._call, self._leave = call, leave
        self._remaining = len(call.requests)

    def __next__(self) -> Event:
        """The next event.

        Raises:
            MlxrError: a request of the call has failed; the others are cancelled.
        """
        if not self._remaining:
            raise StopIteration
        event = self._call.events.get()
        if isinstance(event, BaseException):
            self.close()
            raise event
        self._remaining -= event.finish_reason is not None
        return event

    def close(self) -> None:
        """Cancels what is left."""
        self._remaining = 0
        self._leave(self._call)

    def __enter__(self) -> "Events":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()
