"""Prompt lookup: guesses that a text goes on as it went on the last time, without any model.

Source: Prompt Lookup Decoding (Saxena 2023), as vLLM's `ngram` and llama.cpp's `lookup` have it. Here the tokens are
indexed as they come, so that a guess does not search the text again.
"""

from collections.abc import Sequence

_SHORTEST, _LONGEST = 2, 5
_MOST_PLACES = 32


class PromptLookup:
    """Guesses for one growing text: the longest of its last n-grams that occurred before, and what followed it then.

    Of several places with an n-gram of the same length, the newest counts. Only the newest 32 places with the last two
    tokens are looked at, so a guess takes some microseconds however long the text is. It keeps two numbers and an entry
    of a dictionary for each token.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], int] = {}
        """For each pair of neighbours, the index of the token after its newest place that is indexed."""
        self._before: list[int] = [0, 0]
        """For the token at each index, the same for the place before that one; 0: there is none."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Guesses the tokens that follow. Near the end of the text, a guess goes on from its own tokens.

        Args:
            tokens: the text so far: that of the last call, and perhaps more.
            most: how many tokens to guess.

        Returns:
            `most` tokens, or none where the last two occur nowhere before.
        """
        self._index(tokens)
        end = len(tokens)
        if end <= _SHORTEST or most < 1:
            return []
        place = self._newest.get((tokens[end - 2], tokens[end - 1]), 0)
        best, length = 0, 0
        for _ in range(_MOST_PLACES):
            if not place or length == _LONGEST:
                break
            same = _SHORTEST
            while same < min(_LONGEST, place) and tokens[place - 1 - same] == tokens[end - 1 - same]:
                same += 1
            if same > length:
                best, length = place, same
            place = self._before[place]
        if not best:
            return []
        guess = list(tokens[best : best + most])
        while len(guess) < most:
            guess.append(guess[len(guess) - (end - best)])
        return guess

    def _index(self, tokens: Sequence[int]) -> None:
        """Indexes all places but the last, which is the one to look up."""
        newest, before = self._newest, self._before
        for place in range(len(before), len(tokens)):
            pair = (tokens[place - 2], tokens[place - 1])
            before.append(newest.get(pair, 0))
            newest[pair] = place
