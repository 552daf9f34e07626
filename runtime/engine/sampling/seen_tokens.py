"""The tokens that penalties are for: which ones a request has seen, and how often they are in its answer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.intp]
Counts = npt.NDArray[np.float32]


class SeenTokens:
    """The distinct tokens of a prompt and its answer so far, with how often each is in the answer."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        """Begins with a prompt, whose tokens count 0 times."""
        self._ids: Ids = np.unique(np.asarray(prompt, dtype=np.intp))
        self._counts: Counts = np.zeros(len(self._ids), dtype=np.float32)
        self._places = {token: place for place, token in enumerate(self._ids.tolist())}

    def accept(self, token: int) -> None:
        """Counts a token of the answer."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):  # room for as many again, so that growing costs little in the long run
            self._ids = np.concatenate([self._ids, np.zeros(place + 16, dtype=np.intp)])
            self._counts = np.concatenate([self._counts, np.zeros(place + 16, dtype=np.float32)])
        self._ids[place] = token
        self._counts[place] += 1

    def after(self, draft: Sequence[int] = ()) -> tuple[Ids, Counts]:
        """The distinct tokens, [n], and how often each is in the answer, if it goes on with `draft`."""
        size = len(self._places)
        ids, counts = self._ids[:size], self._counts[:size]
        if not draft:
            return ids, counts
        new = [token for token in dict.fromkeys(draft) if token not in self._places]
        ids = np.concatenate([ids, np.array(new, dtype=np.intp)])
        counts = np.concatenate([counts, np.zeros(len(new), dtype=np.float32)])
        places = {token: size + i for i, token in enumerate(new)}
        for token in draft:
            counts[places[token] if token in places else self._places[token]] += 1
        return ids, counts
