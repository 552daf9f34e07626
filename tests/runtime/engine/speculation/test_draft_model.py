"""The draft model's guesses are what it would answer itself, whatever became of earlier ones; its arena is bounded."""

from collections.abc import Iterator, Sequence

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.speculation.draft_model import DraftModel, check_same_vocabulary
from mlxr.runtime.engine.speculation.text import Text
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Chained
from mlxr_tests.storyteller import TINY, tiny_spec


@pytest.fixture(scope="module")
def tiny() -> Model:
    """640 tokens, a context of 64, steps of 16 tokens, 3 sequences, 8 blocks of 16."""
    cache = {"num_blocks": 8, "max_sequences": 3, "mode": "paged"}
    spec = tiny_spec(model={"context": 64}, cache=cache, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, TINY, host="cpu")


@pytest.fixture
def draft(tiny: Model) -> Iterator[DraftModel]:
    """It guesses for a model with the same vocabulary; at the end its arena is empty."""
    draft = DraftModel(tiny.host, tiny.pager, 640)
    yield draft
    tiny.pager.check_integrity()
    draft.close()
    tiny.pager.check_integrity()
    assert tiny.pager.num_sequences == 0


def ids(count: int, start: int = 300) -> list[int]:
    return [1, *range(start, start + count - 1)]


def answer(model: Model, tokens: list[int], count: int) -> list[int]:
    return model.start([tokens], max_tokens=count, ignore_eos=True).finish()[0].token_ids


def test_guesses_are_the_models_own_answer(tiny: Model, draft: DraftModel) -> None:
    first, second = ids(9), ids(5, 400)
    wanted = [answer(tiny, first, 4), answer(tiny, second, 2)]
    assert draft.propose([Text("a", first, 4), Text("b", second, 2), Text("c", ids(3), 0)]) == [*wanted, []]
    # The first text went on with two of the guesses and another token, the second one with all of them.
    first, second = [*first, *wanted[0][:2], 77], [*second, *wanted[1], 78]
    wanted = [answer(tiny, first, 3), answer(tiny, second, 3)]
    before = sum(tiny.host.launches.values())
    assert draft.propose([Text("a", first, 3), Text("b", second, 3)]) == wanted
    assert sum(tiny.host.launches.values()) - before > 0
    # Now nothing came true, and a text was left out for a while.
    first = [*first, 5, 6, 7]
    assert draft.propose([Text("a", first, 1)]) == [answer(tiny, first, 1)]
    second = [*second, 9, 10]
    assert draft.propose([Text("b", second, 2)]) == [answer(tiny, second, 2)]


def test_a_long_text_is_read_a_step_at_a_time(tiny: Model, draft: DraftModel) -> None:
    prompt = ids(40)
    guesses = [draft.propose([Text("a", prompt, 2)])[0] for _ in range(3)]
    assert guesses == [[], [], answer(tiny, prompt, 2)]


def test_only_what_is_new_is_read(tiny: Model, draft: DraftModel) -> None:
    (guess,) = draft.propose([Text("a", ids(12), 3)])
    steps: list[int] = []
    chain = tiny.host.chain

    def count(batches: Sequence[Batch], width: int) -> Chained:
        steps.extend(batch.num_tokens for batch in batches)
        return chain(batches, width)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny.host, "chain", count)
        draft.propose([Text("a", [*ids(12), *guess, 7], 3)])
    assert steps == [2, 1, 1], "the last guess, which no step has read, and the token after it"


def test_texts_that_nobody_asks_for_give_way(tiny: Model, draft: DraftModel) -> None:
    for key in "abcd":
        draft.propose([Text(key, ids(30), 1)])
        assert draft.propose([Text(key, ids(30), 1)])[0], key
    assert tiny.pager.num_sequences == 3
    together = [Text(key, ids(40), 1) for key in "defg"]
    for _ in range(4):
        guesses = draft.propose(together)
    assert sum(map(bool, guesses)) == 2, "8 blocks hold two texts of 41 tokens"


def test_texts_that_do_not_fit_get_no_guess(tiny: Model, draft: DraftModel) -> None:
    assert draft.propose([Text("a", ids(62), 3), Text("b", [1, 640], 2)]) == [[], []]
    assert draft.propose([Text("b", [1, 2], 2)]) != [[]]
    assert draft.propose([Text("b", [1, 2, 640], 2)]) == [[]]


def test_it_guesses_no_id_that_the_model_lacks(tiny: Model) -> None:
    draft = DraftModel(tiny.host, tiny.pager, 20)
    assert all(token < 20 for token in draft.propose([Text("a", ids(9), 4)])[0])
    draft.close()


def test_a_step_that_fails_forgets_its_texts(tiny: Model, draft: DraftModel, monkeypatch: pytest.MonkeyPatch) -> None:
    draft.propose([Text("a", ids(5), 2)])

    def fail(batches: object, width: int) -> object:
        raise HostError("the step failed")

    with monkeypatch.context() as patch:
        patch.setattr(tiny.host, "chain", fail)
        with pytest.raises(HostError, match="the step failed"):
            draft.propose([Text("a", ids(6), 2), Text("b", ids(4), 2)])
    assert tiny.pager.num_sequences == 0
    assert draft.propose([Text("a", ids(6), 2)]) == [answer(tiny, ids(6), 2)]


def test_a_refused_draft_model_is_not_used(tiny: Model) -> None:
    with mlxr.load("storyteller", host="reference") as model:
        with pytest.raises(RequestError, match="cannot be the draft model"):
            model.speculate(tiny)
        assert model.core.speculator is None
        model.speculate()
        assert model.core.speculator is not None


def test_vocabularies_are_compared_token_by_token(tiny: Model) -> None:
    check_same_vocabulary(tiny.artifact, tiny.tokenizer, tiny.artifact, tiny.tokenizer)
    other = mlxr.load("storyteller", host="reference")
    smaller = (
        r"^tiny-Q8_0 cannot be the draft model of storyteller: its vocabulary has 640 tokens, not 4096: take a smaller"
    )
    with pytest.raises(RequestError, match=smaller):
        check_same_vocabulary(other.artifact, other.tokenizer, tiny.artifact, tiny.tokenizer)
    with pytest.raises(RequestError, match=r"token \d+ is '.*' in it, and '.*' in tiny-Q8_0: take a smaller"):
        check_same_vocabulary(tiny.artifact, tiny.tokenizer, other.artifact, other.tokenizer)
    check_same_vocabulary(tiny.artifact, None, tiny.artifact, None)
    with pytest.raises(RequestError, match="has 4096 tokens, not 640"):
        check_same_vocabulary(tiny.artifact, None, other.artifact, None)
    with pytest.raises(RequestError, match="tiny-Q8_0 has no tokenizer"):
        check_same_vocabulary(tiny.artifact, None, other.artifact, other.tokenizer)
