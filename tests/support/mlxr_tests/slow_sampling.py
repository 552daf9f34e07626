"""What sampling means, written from the documentation of each option: slow, in f64, one token after the other."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.options import Sampling

Probabilities = npt.NDArray[np.float64]


def probabilities(
    logits: Sequence[float],
    options: Sampling,
    *,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
    stop_ids: Sequence[int] = (),
) -> Probabilities:
    """The probability with which each token must be chosen: 1 for one token if greedy."""
    x = [float(value) for value in logits]
    if allowed is not None:
        x = [value if i in allowed else -math.inf for i, value in enumerate(x)]
    if len(answer) < options.min_tokens and any(value > -math.inf for i, value in enumerate(x) if i not in stop_ids):
        x = [-math.inf if i in stop_ids else value for i, value in enumerate(x)]
    for i, bias in options.logit_bias.items():
        x[i] += bias
    for i in {*[*prompt, *answer][-options.repetition_range :]}:
        r = options.repetition_penalty
        x[i] = x[i] / r if x[i] > 0 else x[i] * r
    for i in set(answer):
        x[i] -= options.frequency_penalty * list(answer).count(i)
        x[i] -= options.presence_penalty
    # Without a tokenizer there are no breakers.
    for i, penalty in dry_penalties([*prompt, *answer], options).items():
        x[i] -= penalty
    best = max(range(len(x)), key=lambda i: (x[i], -i))
    if options.temperature == 0:
        return np.array([float(i == best) for i in range(len(x))])
    p = normalised({i: math.exp((value - x[best]) / options.temperature) for i, value in enumerate(x)})
    p = filtered(p, options)
    return np.array([p.get(i, 0.0) for i in range(len(x))])


def filtered(p: dict[int, float], options: Sampling) -> dict[int, float]:
    """The distribution that the filters leave, each applied to what the one before it left."""
    most = max(p.values())
    if options.min_p > 0:
        p = normalised({i: q for i, q in p.items() if q >= options.min_p * most})
    if options.top_k > 0:
        order = sorted(p, key=lambda i: (-p[i], i))
        p = normalised({i: p[i] for i in order[: options.top_k]})
    if options.typical_p < 1:
        entropy = -sum(q * math.log(q) for q in p.values() if q > 0)
        order = sorted((i for i in p if p[i] > 0), key=lambda i: (round(abs(-math.log(p[i]) - entropy), 9), i))
        p = normalised(until(p, order, options.typical_p))
    if options.top_p < 1:
        p = normalised(until(p, sorted(p, key=lambda i: (-p[i], i)), options.top_p))
    return p


def until(p: dict[int, float], order: list[int], share: float) -> dict[int, float]:
    """The first tokens in an order whose sum reaches a share, at least one."""
    kept: dict[int, float] = {}
    reached = 0.0
    for i in order:
        kept[i] = p[i]
        reached += p[i]
        if reached >= share:
            break
    return kept


def normalised(p: dict[int, float]) -> dict[int, float]:
    total = sum(p.values())
    return {i: q / total for i, q in p.items()}


def dry_penalties(tokens: Sequence[int], options: Sampling, breakers: Sequence[int] = ()) -> dict[int, float]:
    """What DRY takes from each token's logit. Breakers are tokens here, each one a breaker by itself."""
    if not options.dry_multiplier:
        return {}
    tokens = list(tokens[-options.dry_range :])
    penalties: dict[int, float] = {}
    for token in set(tokens) - set(breakers):
        longest = 0
        for i in range(len(tokens)):
            length = 0
            while length < i and tokens[i] == token and tokens[i - 1 - length] == tokens[-1 - length] not in breakers:
                length += 1
            longest = max(longest, length)
        if longest >= options.dry_allowed_length:
            growth = options.dry_base ** (longest - options.dry_allowed_length)
            penalties[token] = options.dry_multiplier * growth
    return penalties
