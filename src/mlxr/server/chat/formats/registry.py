"""Finds the family of a model by the text of its chat template."""

from mlxr.server.chat.formats.family import Family
from mlxr.server.chat.formats.glm import Glm
from mlxr.server.chat.formats.harmony import Harmony
from mlxr.server.chat.formats.hermes import Hermes
from mlxr.server.chat.formats.llama3 import Llama3
from mlxr.server.chat.formats.mistral import Mistral
from mlxr.server.chat.formats.plain import Plain
from mlxr.server.chat.formats.smollm3 import SmolLM3

# Some templates have the markers of Hermes and more; those come first.
_FAMILIES: tuple[type[Family], ...] = (Harmony, Glm, SmolLM3, Mistral, Hermes, Llama3, Plain)


def family_of(template_text: str) -> Family:
    """The first family that a template matches; any matches the last one."""
    return next(family for family in _FAMILIES if family.matches(template_text))(template_text)
