"""How many tokens to guess of each text: as many as are expected to give the most tokens per second."""

from collections.abc import Sequence

LEAST_GAIN = 0.03
"""Drafts that promise less, of the speed without them, are not worth their risk."""


def draft_lengths(
    chances: Sequence[Sequence[float]], seconds: Sequence[float], drafting_seconds: float = 0.0
) -> list[int]:
    """The number of draft tokens for each text of a step.

    A step gives each text a token, and one more for each draft token that is accepted. So the likeliest guesses of all
    texts go first, and as many of them are taken as make the step's tokens per second greatest.

    Args:
        chances: for each text, the chances that its guesses are accepted, which fall.
        seconds: of the step with no guess, with one, two, ...; at least one number.
        drafting_seconds: what it takes to make a guess for each text.
    """
    lengths = [0] * len(chances)
    ranked = sorted((-chance, place, text) for text, row in enumerate(chances) for place, chance in enumerate(row))
    ranked = ranked[: len(seconds) - 1]
    tokens, longest, taken = float(len(chances)), 0, 0
    best = (1 + LEAST_GAIN) * tokens / seconds[0]
    for count, (chance, place, _) in enumerate(ranked, 1):
        tokens -= chance
        longest = max(longest, place + 1)
        speed = tokens / (seconds[count] + longest * drafting_seconds)
        if speed > best:
            best, taken = speed, count
    for _, _, text in ranked[:taken]:
        lengths[text] += 1
    return lengths
