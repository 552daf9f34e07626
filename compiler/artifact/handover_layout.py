"""The memory in which a card and the CPU, which has some layers' experts, give each other rows: what is where."""

from dataclasses import dataclass

from mlxr.compiler.artifact.library_call import HandoverCall
from mlxr.compiler.artifact.plan import Plan

_HEAD_BYTES = 4096
"""Numbers and what is given of which step, before the rows."""
_ALIGNMENT = 256


@dataclass(frozen=True)
class HandoverLayout:
    """Where in the memory everything is.

    Attributes:
        width: columns of the rows that are given.
        result: columns of the sums.
        top_k: the most experts of a token.
        tokens: the most tokens of a step.
    """

    width: int
    result: int
    top_k: int
    tokens: int

    @classmethod
    def of(cls, plan: Plan) -> "HandoverLayout":
        """The memory for the plan of a card that leaves experts to the CPU."""
        calls = [launch.body for phase in plan.first.phases for launch in phase.launches]
        both = [call for call in calls if isinstance(call, HandoverCall)]
        given = [call for call in both if call.function == "give"]
        chosen = [port.shape[1] for call in given for port in call.ports if port.name == "experts"]
        return cls(
            max(call.width for call in given),
            max(call.width for call in both if call.function == "take"),
            max(count for count in chosen if isinstance(count, int)),
            plan.max_tokens,
        )

    @property
    def x_at(self) -> int:
        """Where the rows are, [tokens, width] f32."""
        return _HEAD_BYTES

    @property
    def experts_at(self) -> int:
        """Where the chosen experts are, [tokens, top_k] i32."""
        return _after(self.x_at, self.tokens * self.width)

    @property
    def weights_at(self) -> int:
        """Where their weights are, [tokens, top_k] f32."""
        return _after(self.experts_at, self.tokens * self.top_k)

    @property
    def sum_at(self) -> int:
        """Where the sums are, [tokens, result] f32."""
        return _after(self.weights_at, self.tokens * self.top_k)

    @property
    def size_bytes(self) -> int:
        """Bytes of the memory."""
        return _after(self.sum_at, self.tokens * self.result)


def _after(start: int, numbers: int) -> int:
    return -(-(start + 4 * numbers) // _ALIGNMENT) * _ALIGNMENT
