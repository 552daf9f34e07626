"""Which answers take part in the next step, and with which tokens."""

from collections.abc import Sequence

from mlxr.compiler.artifact import Plan
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.answer import Answer
from mlxr.runtime.hosts.batch import BatchRequest

Scheduled = list[tuple[Answer, BatchRequest]]
"""A step: the answers that take part in it, each with its part."""


def next_step(answers: Sequence[Answer], plan: Plan, pager: Pager) -> Scheduled:
    """The next step: answers that decode come first, then prompts in order, as limits and free blocks allow.

    An answer that gets no blocks waits until another one ends. If nobody can go on, the step is the first answer's all
    the same: launching it raises the arena's own error.

    Args:
        answers: one or more that have not ended, all with pending tokens.
        plan: its limits are those of a step.
        pager: of the arena; nothing is appended yet.
    """
    budget, rows = plan.max_tokens, plan.max_rows
    scheduled: Scheduled = []
    growths: list[tuple[int, int]] = []
    for answer in sorted(answers, key=lambda a: len(a.pending) > 1):
        count = min(len(answer.pending), budget)
        is_last = count == len(answer.pending)
        if not count or (is_last and not rows):
            continue
        growth = (answer.seq_id, count)
        if not pager.can_append_all([*growths, growth]):
            continue
        growths.append(growth)
        budget -= count
        rows -= is_last
        request = BatchRequest(answer.seq_id, answer.pending[:count], answer.length, "last" if is_last else "none")
        scheduled.append((answer, request))
    if not scheduled:
        first = answers[0]
        count = min(len(first.pending), plan.max_tokens)
        scheduled.append((first, BatchRequest(first.seq_id, first.pending[:count], first.length, "none")))
    return scheduled


def step_ahead(answers: Sequence[Answer], sampled: Sequence[Answer], plan: Plan, pager: Pager) -> Scheduled:
    """The step that takes the tokens which a launched step is about to sample; empty if it is not known yet.

    It is known if each answer has a token in the launched step and the arena has room for all of them. Its requests
    carry the token id 0 in place of ids that nobody has read.

    Args:
        answers: those that have not ended, as far as is known.
        sampled: those whose tokens the launched step samples.
        plan: its limits are those of a step.
        pager: of the arena; nothing is appended yet.
    """
    if not set(answers) <= set(sampled):
        return []  # a prompt is being read, or waits for room that the end of another answer may give
    going = [answer for answer in answers if not answer.is_last_step]
    if len(going) > min(plan.max_tokens, plan.max_rows):
        return []
    if not pager.can_append_all([(answer.seq_id, 1) for answer in going]):
        return []
    return [(answer, BatchRequest(answer.seq_id, [0], answer.length)) for answer in going]
