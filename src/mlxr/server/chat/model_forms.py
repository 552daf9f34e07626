"""The forms of answers of a model that is not loaded, from its templates alone: what lists of models tell."""

from contextlib import closing
from functools import lru_cache
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.template_files import NamedTemplates
from mlxr.server.chat.formats.family import Family
from mlxr.server.chat.formats.registry import family_of

_KEPT = 64


def family_of_templates(templates: NamedTemplates) -> Family | None:
    """The family of a model's answers where tools are given; None if its template is faulty. Slow the first time."""
    return _family(templates.text, templates.tool_use)


@lru_cache(_KEPT)
def _family(text: str, tool_use: str | None) -> Family | None:
    with closing(ChatTemplate(text, "the model", {"bos_token": "", "eos_token": ""}, tool_use=tool_use)) as template:
        needed: dict[str, Any] = {} if tool_use is None else {"tools": []}
        try:
            template.render([{"role": "user", "content": "Hi"}], **needed)
            return family_of(template, needed, {})
        except ChatTemplateError:
            return None
