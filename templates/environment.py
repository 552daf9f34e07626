"""How templates are read: the settings of Jinja2 that all of them are written for. Whoever renders adds filters."""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket, BytecodeCache


def environment() -> jinja2.Environment:
    """A new environment of these templates; an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("mlxr.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,
        # Constants are few, and a search for them takes a fifth of the time in which templates compile. Without it, no
        # filter runs then: what is kept depends on a template's text alone.
        optimized=False,
        bytecode_cache=_BesideModules(),
    )


class _BesideModules(BytecodeCache):
    """Keeps compiled templates where Python keeps compiled modules, if it may: those of a model take half a second."""

    def get_bucket(self, environment: Any, name: str, filename: str | None, source: str) -> Bucket:
        """The place of a template, apart for texts that are escaped."""
        escaped = "-escaped" if environment.autoescape else ""
        return super().get_bucket(environment, name + escaped, filename, source)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Reads what is kept, if it was made from this text by this Jinja2 and Python."""
        with contextlib.suppress(OSError), _place(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keeps it, whole or not at all."""
        if sys.dont_write_bytecode:
            return
        place = _place(bucket)
        staged = place.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(bucket.bytecode_to_string())
            staged.replace(place)


def _place(bucket: Bucket) -> Path:
    return Path(importlib.util.cache_from_source(__file__)).with_name(f"{bucket.key}.jinja2")
