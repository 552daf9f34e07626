"""Forms of calls and thoughts that no model has are learned from their templates, which judge what is read."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr_tests.few import few
from mlxr_tests.invented_templates import INVENTED, Invented
from mlxr_tests.judged_chats import SpokenModel
from mlxr_tests.template_answers import MESSAGES, THOUGHT, difference, read_back, written
from mlxr_tests.tried_forms import TriedForm

SHORT = ("names and values in attributes and tags", "odd thoughts")


def spoken(name: str, *, tokens: bool = True) -> SpokenModel:
    """A model of an invented form; its markers are control tokens, or text."""
    invented = INVENTED[name]
    return SpokenModel(invented.text, (*invented.control, *invented.ends) if tokens else ())


def messages_of(invented: Invented) -> Iterator[tuple[str, dict[str, Any]]]:
    """Messages that a template can write, with thoughts and without."""
    for name, message in MESSAGES.items():
        if name not in invented.without:
            yield name, message
            if invented.thinks:
                yield f"{name}, after a thought", message | {"reasoning_content": THOUGHT}


@pytest.mark.parametrize("tokens", few((True, False), (True,)), ids=["tokens", "text"])
@pytest.mark.parametrize("name", few(INVENTED, SHORT))
def test_what_a_template_writes_is_read_back(name: str, tokens: bool) -> None:
    invented, wrong = INVENTED[name], {}
    with spoken(name, tokens=tokens) as model:
        assert model.format.takes_tools, model.format.family
        for case, message in messages_of(invented):
            text = written(model.template, message, ends=invented.ends)
            chance = random.Random(case)
            answers = [read_back(model, text), *(read_back(model, text, chance) for _ in range(5))]
            if told := difference(message, answers[0]):
                wrong[case] = f"{text.answer!r}: {told}"
            assert answers.count(answers[0]) == len(answers), answers
    assert not wrong


@pytest.mark.parametrize("name", few(INVENTED, (*SHORT, "quotes of its own, and names in order")))
def test_calls_that_are_forced_are_calls(name: str) -> None:
    with spoken(name) as model:
        form = TriedForm(model, INVENTED[name].ends, INVENTED[name].without)
        for count in (form.forced(3), form.own_calls_allowed()):
            assert count.right == count.tried > 0, count.told


@pytest.fixture(scope="module")
def forms() -> Iterator[dict[str, TriedForm]]:
    models = {name: spoken(name) for name in SHORT}
    yield {name: TriedForm(model, INVENTED[name].ends) for name, model in models.items()}
    for model in models.values():
        model.format.close()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(SHORT))
def test_where_an_answer_is_cut_changes_nothing(forms: dict[str, TriedForm], seed: int, name: str) -> None:
    for count in (forms[name].cuts(25, seed), forms[name].kept(5, seed)):
        assert count.right == count.tried, count.told


@pytest.mark.long
@pytest.mark.parametrize("name", INVENTED)
def test_where_answers_of_each_form_are_cut_changes_nothing(name: str) -> None:
    with spoken(name) as model:
        count = TriedForm(model, INVENTED[name].ends, INVENTED[name].without).cuts(2000)
        assert count.right == count.tried, count.told
