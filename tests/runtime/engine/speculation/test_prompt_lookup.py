"""Prompt lookup finds what a search of the whole text finds, while the text grows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.engine.speculation.prompt_lookup import PromptLookup
from mlxr_tests.few import examples


def searched(tokens: list[int], most: int) -> list[int]:
    """What followed the longest of the last 5 to 2 tokens, at its newest place; the guess continues its own text."""
    for length in range(5, 1, -1):
        suffix = tokens[-length:]
        # Only the newest 32 places with the last two tokens count.
        places = [i for i in range(len(tokens) - 1, 1, -1) if tokens[i - 2 : i] == tokens[-2:]][:32]
        for place in places:
            if place >= length and tokens[place - length : place] == suffix:
                text = list(tokens)
                for i in range(most):
                    text.append(text[place + i])
                return text[len(tokens) :]
    return []


@settings(max_examples=examples(300, 100), deadline=None, database=None)
@given(data=st.data())
def test_it_finds_what_a_search_finds(data: st.DataObject) -> None:
    letters = data.draw(st.sampled_from([2, 3, 12]))
    text = data.draw(st.lists(st.integers(0, letters - 1), max_size=120))
    grows = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
    lookup, length = PromptLookup(), 0
    for more in grows:
        length = min(len(text), length + more)
        assert lookup.propose(text[:length], 6) == searched(text[:length], 6)


def test_a_place_further_back_with_more_in_common_wins() -> None:
    assert PromptLookup().propose([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4], 2) == [50, 9]
    assert PromptLookup().propose([3, 4, 50, 9, 3, 4, 60, 1, 3, 4], 2) == [60, 1]


def test_a_loop_goes_on() -> None:
    assert PromptLookup().propose([7, 8, 9, 8, 9, 8], 5) == [9, 8, 9, 8, 9]
    assert PromptLookup().propose([5, 5, 5], 3) == [5, 5, 5]


def test_nothing_is_guessed_without_a_place() -> None:
    assert PromptLookup().propose([], 3) == []
    assert PromptLookup().propose([1, 1], 3) == []
    assert PromptLookup().propose([1, 2, 3, 2, 1, 4], 3) == []
    assert PromptLookup().propose([1, 2, 1, 2], 0) == []
