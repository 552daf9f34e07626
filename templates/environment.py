"""How templates are read: the settings of Jinja2 that all of them are written for. Whoever renders adds filters."""

import contextlib
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.compiler import CodeGenerator

_COMPILED_IN = ("autoescape", "trim_blocks", "lstrip_blocks", "keep_trailing_newline", "optimized")
"""Settings that a compiled template depends on."""


def environment() -> jinja2.Environment:
    """A new environment of these templates; an undefined name is an error."""
    return _Environment(
        loader=jinja2.PackageLoader("mlxr.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        auto_reload=False,
        optimized=False,  # constants are few; a search for them takes a fifth of the time in which templates compile
        bytecode_cache=_BesideModules(),
    )


class _Generator(CodeGenerator):
    """Runs no filter when a template is compiled, so that what is kept depends on the template's text alone."""

    def _output_child_to_const(self, node: nodes.Expr, *others: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, *others)


class _Environment(jinja2.Environment):
    code_generator_class = _Generator


class _BesideModules(BytecodeCache):
    """Keeps compiled templates where Python keeps compiled modules, if it may: those of a model take half a second."""

    def get_bucket(self, environment: Any, name: str, filename: str | None, source: str) -> Bucket:
        """The place of a template, apart for each Jinja2 and for settings that it compiles otherwise."""
        settings = [getattr(environment, setting) for setting in _COMPILED_IN]
        return super().get_bucket(environment, f"{name} {jinja2.__version__} {settings}", filename, source)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Reads what is kept, if it was made from this text by this Jinja2 and Python."""
        try:
            with _place(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except Exception:  # there is none; or it is damaged, of which Jinja2 notices only some
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keeps it, whole or not at all."""
        if sys.dont_write_bytecode:
            return
        with contextlib.suppress(OSError, NotImplementedError):  # some Pythons have no place for compiled modules
            place = _place(bucket)
            staged = place.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                staged.write_bytes(bucket.bytecode_to_string())
                staged.replace(place)
            finally:
                staged.unlink(missing_ok=True)


def _place(bucket: Bucket) -> Path:
    return Path(importlib.util.cache_from_source(__file__)).with_name(f"{bucket.key}.jinja2")
