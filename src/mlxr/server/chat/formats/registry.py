"""Finds how the answers of a model are written: by a form that is written down here, else by one that is learned."""

from collections.abc import Collection, Mapping

from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.formats.family import TemplateFamily
from mlxr.server.chat.formats.harmony import Harmony
from mlxr.server.chat.learned.answer_form import Origin
from mlxr.server.chat.learned.learn_form import learn_form
from mlxr.server.chat.learned.learned_family import Learned


def family_of(
    template: ChatTemplate,
    variables: dict[str, object],
    control: Mapping[str, int],
    ends: Collection[str] = (),
    *,
    has_tools: bool = True,
) -> TemplateFamily:
    """The family of a template.

    Args:
        template: rendered some thirty times, about a tenth of a second; it must not be in use.
        variables: what it needs besides messages.
        control: ids of the model's control tokens by their names.
        ends: names of tokens that end an answer.
        has_tools: whether it is also used where tools are given.

    Raises:
        ChatTemplateError: the template takes too long or too much.
    """
    form = learn_form(template, variables, ends, has_tools=has_tools)
    if Harmony.matches(form):
        return Harmony(form)
    return Learned(form, control)


def form_name(family: TemplateFamily) -> str:
    """A family's form of calls in a few words."""
    origin = {Origin.OURS: ", asked for by the system message", Origin.TOLD: ", told in words"}
    return f"{family.shown}{origin.get(family.form.origin, '')}"
