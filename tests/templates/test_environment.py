"""Compiled templates are kept beside compiled modules, and made anew where the text or what is kept has changed."""

import sys
from pathlib import Path
from typing import Any

import jinja2
import jinja2.bccache
import pytest

from mlxr.templates.environment import environment

NAME = "some.jinja"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The texts that Jinja2 compiles in the test, which keeps them in a folder of its own."""
    texts: list[str] = []
    real = jinja2.Environment.compile

    def compile_text(self: jinja2.Environment, source: str, *others: object, **more: object) -> object:
        texts.append(source)
        return real(self, source, *others, **more)

    monkeypatch.setattr(jinja2.Environment, "compile", compile_text)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return texts


def rendered(text: str, **settings: bool) -> str:
    """A template's text, of an environment that has read no other."""
    loader = jinja2.DictLoader({NAME: text})
    return environment().overlay(loader=loader, cache_size=0, **settings).get_template(NAME).render(a="<b>")


def test_a_template_is_compiled_once(compiled: list[str], tmp_path: Path) -> None:
    assert rendered("{{ a }}!") == rendered("{{ a }}!") == "<b>!"
    assert compiled == ["{{ a }}!"]
    assert len([*tmp_path.rglob("*.jinja2")]) == len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_another_text_is_compiled_and_another_escaping_too(compiled: list[str]) -> None:
    assert [rendered("{{ a }}"), rendered("{{ a }}."), rendered("{{ a }}.", autoescape=True)] == [
        "<b>",
        "<b>.",
        "&lt;b&gt;.",
    ]
    assert len(compiled) == 3
    assert [rendered("{{ a }}."), rendered("{{ a }}.", autoescape=True)] == ["<b>.", "&lt;b&gt;."]
    assert len(compiled) == 3


def test_no_filter_runs_when_a_template_is_compiled(compiled: list[str]) -> None:
    """One that was mended since gives another text, though the template is kept."""
    texts = []
    for result in ("old", "new"):
        own = environment().overlay(loader=jinja2.DictLoader({NAME: "{{ 1 | some }}, {{ 2 }}"}), cache_size=0)
        own.filters = own.filters | {"some": lambda _, result=result: result}
        texts.append(own.get_template(NAME).render())
    assert texts == ["old, 2", "new, 2"]
    assert len(compiled) == 1


@pytest.mark.parametrize("other", [{"trim_blocks": False}, {"version": "0.1"}])
def test_other_settings_and_another_jinja2_compile_anew(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    rendered("{{ a }}")
    monkeypatch.setattr(jinja2, "__version__", other.pop("version", jinja2.__version__))
    rendered("{{ a }}", **other)
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", [b"", b"no bytecode", jinja2.bccache.bc_magic, jinja2.bccache.bc_magic + b"?", None])
def test_what_is_damaged_is_made_anew(compiled: list[str], tmp_path: Path, damage: bytes | None) -> None:
    rendered("{{ a }}")
    (kept,) = tmp_path.rglob("*.jinja2")
    kept.write_bytes(kept.read_bytes()[:-9] if damage is None else damage)
    assert [rendered("{{ a }}"), rendered("{{ a }}")] == ["<b>", "<b>"]
    assert len(compiled) == 2


def test_nothing_is_written_where_python_writes_no_bytecode(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rendered("{{ a }}")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file"))  # no folder can be made in it
    assert rendered("{{ a }}") == "<b>"
    assert not [*tmp_path.rglob("*.jinja2")]
