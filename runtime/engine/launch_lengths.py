"""How many decode steps a launch has, and after how many of them their tokens are told.

What a launch costs the CPU hardly depends on its steps, and neither does what it costs to tell tokens: after each wait,
nothing is in the processor's cache. But whoever comes waits for all that the device was given, and readers wait for
tokens that are told together.
"""

from mlxr.compiler.artifact import Plan
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.step import Step
from mlxr.runtime.engine.step_times import StepTimes

_LAUNCH_SECONDS, _STEADY_SECONDS, AHEAD_SECONDS = 0.008, 0.04, 0.016
"""How long the decode steps of one launch take at most, at first and once the same requests have decoded for long: a
request that comes waits for up to two launches, and the system lets another process run for about as long. Of prepared
steps the device is given so many at once as take the last of these: a new request waits for two times that."""
_SHARE = 0.25
"""In between, they take this share of the time that the requests have decoded."""
LONG_SECONDS = 0.03
"""How long a launch must take for the next one to be given to the host `AHEAD_SECONDS` before its end."""
_TOLD_SECONDS, _MOST_TOLD = 0.064, 24
"""How long steps take of which the tokens are told together, and how many these are, at most."""
_LONGEST_TOLD_SECONDS, _LEAST_TOLD, _FEW = 0.12, 16, 8
"""As many of slow steps are told together, but not of more than this time, where there are more than a few sequences:
else the CPU's time for each step is too long."""
_LAUNCH_LOGITS = 1 << 25
"""Numbers of logits of one launch at most, 128 MiB, where all of them wait to be read."""


class LaunchLengths:
    """The lengths of launches of requests that decode."""

    def __init__(self, plan: Plan, pager: Pager, times: StepTimes, most_steps: int, most_prepared: int) -> None:
        """Stores what they depend on.

        Args:
            plan: has the limits of a step.
            pager: of the arena.
            times: how long steps take.
            most_steps: how many short decode steps a launch may have.
            most_prepared: the same, where the device is given them little by little; see `Host.most_prepared`.
        """
        self._plan, self._pager, self._times = plan, pager, times
        self._most_steps, self._most_prepared = most_steps, most_prepared

    def lengthen(self, step: Step) -> None:
        """Adds to a planned step those after it that its launch may have, too, while nobody comes or leaves."""
        most, decode = min(self._most_steps - 1, step.most_more), step.decode
        if decode is None or not decode.is_plain or most < 1:
            return
        seconds = self._times.launch_seconds(len(step.parts))
        # A state that has been read may be overwritten two steps on.
        if seconds is None or self._pager.states is not None:
            return
        limit = step.most_more
        for request in decode.speculating:
            limit = min(limit, request.draft.rests_until - len(request.answer.tokens) - request.run.in_flight - 1)
        decoded = step.num_repeats * seconds
        longest = max(_LAUNCH_SECONDS, min(_SHARE * decoded, _STEADY_SECONDS))
        most = min(most, limit, int(longest / seconds) - 1)
        first = prepared = 0
        if not step.keeps_no_logits:
            most = min(most, _LAUNCH_LOGITS // (len(step.parts) * self._plan.vocab_size) - 1)
        elif self._most_prepared:
            time = max(_LAUNCH_SECONDS, min(_SHARE * decoded, AHEAD_SECONDS))
            first = max(1, min(self._most_steps, round(time / seconds)))
            prepared = min(self._most_prepared - 1, limit, max(3 * first, 4 * step.num_repeats) - 1)
        if prepared > max(most, 2 * first) and self._has_blocks(step, prepared):
            step.become(1 + prepared, first, 1 + max(most, 0))
        elif most >= 1 and self._has_blocks(step, most):
            step.become(1 + most)

    def num_told(self, step: Step, ended: int) -> int:
        """How many of a step's prepared steps are told together, once so many have ended: at first as many as those."""
        seconds = self._times.launch_seconds(len(step.parts)) or AHEAD_SECONDS
        most = min(int(_TOLD_SECONDS / seconds), _MOST_TOLD)
        if len(step.parts) > _FEW:
            most = max(most, min(int(_LONGEST_TOLD_SECONDS / seconds), _LEAST_TOLD))
        return min(most, step.num_repeats + ended)

    def _has_blocks(self, step: Step, more: int) -> bool:
        """Whether there are blocks for so many steps after one, whatever is shared now."""
        pager, decode = self._pager, step.decode
        assert decode is not None, "only such steps go on"
        blocks = len(step.parts) * (more // pager.block_size + 2)  # one of them a copy of a shared one
        growths = [(seq_id, 1 + more) for seq_id in decode.seq_ids] if pager.others else []
        return blocks <= pager.num_free and pager.can_append_all(growths)
