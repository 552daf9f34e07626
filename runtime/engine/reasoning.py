"""What callers say of reasoning, whatever the model: variables for its chat template, and a budget of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import whole_number
from mlxr.runtime.engine.sampling import Sampling, ThoughtLimit
from mlxr.runtime.engine.sampling.options import CONSTRAINTS
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.template_names import ReadNames
from mlxr.runtime.tokenizer.thinking_form import ThinkingForm, find_thinking

_SWITCH = "enable_thinking"


@dataclass(frozen=True)
class Reasoning:
    """How the model shall think before it answers.

    Attributes:
        variables: for the chat template: `enable_thinking`, `reasoning_effort` and others.
        budget: most tokens of reasoning; 0: none; None: as many as the model wants.
    """

    variables: Mapping[str, Any] = field(default_factory=dict, hash=False)
    budget: int | None = None

    def __post_init__(self) -> None:
        """Checks the budget."""
        if self.budget is not None and whole_number("budget", self.budget) < 0:
            raise RequestError(f"the budget is {self.budget}; expected 0 or more tokens of reasoning")

    def over(self, other: "Reasoning") -> "Reasoning":
        """This, and where it says nothing, the other."""
        return Reasoning({**other.variables, **self.variables}, other.budget if self.budget is None else self.budget)

    def budget_for(self, names: ReadNames) -> int | None:
        """The budget with a template: 0 if reasoning is switched off, and the template has no switch."""
        if self.budget is None and self.variables.get(_SWITCH) is False and not names.has_switch:
            return 0
        return self.budget

    def variables_for(self, template: ChatTemplate) -> dict[str, Any]:
        """The variables with a template, which may tell the model of its budget.

        Raises:
            ChatTemplateError: the template took too long or too much.
        """
        return template.names({}).with_budget(self.variables, self.budget)

    def find_form(self, template: ChatTemplate) -> ThinkingForm | None:
        """How a template writes thoughts, if that matters: if there is a budget with it.

        Raises:
            ChatTemplateError: the template took too long or too much.
        """
        return None if self.budget_for(template.names({})) is None else find_thinking(template)

    def limit(self, template: ChatTemplate, form: ThinkingForm | None, prompt: str) -> ThoughtLimit | None:
        """The limit on what comes before the answer to a prompt; None: there is none, or nothing can come.

        Args:
            template: the template.
            form: what `find_form` found.
            prompt: the text that it rendered.
        """
        budget, prompt = self.budget_for(template.names({})), prompt.rstrip()
        if budget is None or form is None or prompt.endswith(form.end_marker):
            return None
        is_open = prompt.endswith(form.start_marker)
        return ThoughtLimit(budget, form.opening.lstrip(), form.closing, form.end_marker, is_open)

    def without_effect(self, names: ReadNames, has_thoughts: bool) -> str:
        """What of it has no effect with a template, for people; empty: nothing.

        Args:
            names: those that the template reads.
            has_thoughts: whether it writes thoughts.
        """
        parts = []
        if self.budget is not None and not (has_thoughts or names.has_budget):
            parts.append("a budget of reasoning")
        if _SWITCH in self.variables and not (has_thoughts or names.has_switch):
            parts.append("switching reasoning on or off")
        if not parts:
            return ""
        has = "have" if len(parts) > 1 else "has"
        return f"{' and '.join(parts)} {has} no effect: the chat template knows no reasoning"


def with_limit(sampling: Sampling, limit: ThoughtLimit | None) -> Sampling:
    """The options of an answer with the limit on what is thought before it.

    A constraint holds from the first token on, so that nothing can be thought before it.

    Raises:
        RequestError: both are given, and the limit lets the model think, or the prompt has begun a thought.
    """
    if limit is None or (sampling.is_constrained and limit.tokens == 0 and not limit.is_open):
        return sampling
    if sampling.is_constrained:
        name = next(name for name in CONSTRAINTS if getattr(sampling, name) is not None)
        raise RequestError(
            f"a budget of reasoning cannot be combined with {name} here, which holds from the first token of an answer "
            "on: leave one of the two out, or ask a server (mlxr serve), where it holds after the reasoning"
        )
    return replace(sampling, thought=limit)


NO_REASONING = Reasoning()
"""Nothing is said: the template and the model decide."""
