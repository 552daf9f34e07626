"""Where the log goes: lines of JSON to standard error or to a file."""

import logging
import logging.handlers
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from mlxr.compiler.errors import RequestError
from mlxr.server.request_log import JsonLines


@dataclass(frozen=True)
class LogOutput:
    """Where the log goes, and what it has.

    Attributes:
        file: to which lines are added; None: standard error.
        level: of the least important lines, `debug`, `info`, `warning` or `error`.
    """

    file: Path | None = None
    level: str = "info"

    def open(self) -> None:
        """Lets the process log there.

        Raises:
            RequestError: the file cannot be written.
        """
        root, own = logging.getLogger(), logging.getLogger("mlxr")
        try:
            handler = logging.StreamHandler() if self.file is None else _LogFile(self.file, encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{self.file}: the log cannot be written: {error.strerror or error}") from error
        handler.setFormatter(JsonLines())
        root.handlers = [handler]
        own.handlers = []  # what the command prints until the server has a log
        root.setLevel(logging.WARNING)  # other packages tell much that nobody needs
        own.setLevel(self.level.upper())


def open_own_file(path: Path) -> TextIOWrapper:
    """Opens a file to which text is added; if it is new, only this user can read it."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8")


class _LogFile(logging.handlers.WatchedFileHandler):
    """A file that may be moved away (by logrotate, say), and that may be on a full disk: requests go on then."""

    _has_failed = False

    def _open(self) -> TextIOWrapper:
        """Opens it, for this user alone if it is new: it tells who asked for what, and perhaps texts."""
        return open_own_file(Path(self.baseFilename))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file was moved, and cannot be made anew
            self.handleError(record)

    def close(self) -> None:
        """Closes it; what could not be written is lost."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Says once why lines are missing."""
        if not self._has_failed:
            self._has_failed = True
            reason = sys.exc_info()[1]
            print(
                f"warning: {self.baseFilename}: the log cannot be written, so lines of it are lost: {reason}",
                file=sys.stderr,
                flush=True,
            )
