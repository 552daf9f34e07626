"""What `mlxr bench` measures: prompts and decoding, as its options ask."""

from dataclasses import dataclass

from mlxr.bench.lengths import LengthRange, UnseenLengths
from mlxr.compiler.errors import RequestError

LEAST_PROMPTS = 5
PROMPT_TOKENS = 512
_CHUNK = 512
"""Prompt tokens that a step surely takes, in models that are compiled for a workload."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of prompts.

    Attributes:
        warm_up: the length of prompts that are not measured.
        single: the lengths of prompts that are read one at a time.
        together: the lengths of prompts that are read `batch` at a time; none if that is one.
    """

    warm_up: int
    single: list[int]
    together: list[list[int]]


@dataclass(frozen=True)
class Workload:
    """What to measure. Counts are of each sequence.

    Attributes:
        prompt_tokens: length of each prompt, unless there is a range.
        lengths: a range of lengths; each prompt gets a length that no other has had.
        prompts: how many prompts are measured; 0: only decoding is.
        seed: the seed of lengths and tokens.
    """

    prompt_tokens: int | None = None
    decode_tokens: int = 64
    context: int = 0
    """Tokens in the cache before the first measured decode step; at least one is."""
    batch: int = 1
    lengths: LengthRange | None = None
    prompts: int = LEAST_PROMPTS
    seed: int = 1

    @property
    def start(self) -> int:
        """Tokens in the cache before the first measured decode step."""
        return max(self.context, 1)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.lengths.most if self.lengths else self.prompt_tokens or PROMPT_TOKENS

    def lead(self, chunk: int) -> int:
        """How many steps the first of several sequences may be ahead of the last when all prompts have been read.

        Args:
            chunk: most tokens of a step.
        """
        return -(-self.batch * self.start // max(1, chunk - self.batch)) if self.batch > 1 else 0

    def needs(self, chunk: int = _CHUNK) -> tuple[int, str]:
        """Tokens of the longest sequence, and the options that ask for it. One token more than is timed is computed.

        Args:
            chunk: most tokens of a step.
        """
        if not self.prompts:
            return self._decoded(chunk)
        prompt = f"--lengths {self.lengths}" if self.lengths else f"--prompt-tokens {self.longest_prompt}"
        return max((self.longest_prompt + 2, prompt), self._decoded(chunk))

    def _decoded(self, chunk: int) -> tuple[int, str]:
        asked = f"--context {self.context} and --decode-tokens {self.decode_tokens}"
        return self.start + 1 + self.decode_tokens + 1 + self.lead(chunk), asked

    def check(self) -> None:
        """Refuses what cannot be measured.

        Raises:
            RequestError: a count is out of range, or a range has too few lengths.
        """
        if self.lengths and self.prompt_tokens is not None:
            raise RequestError("--lengths and --prompt-tokens both say how long prompts are: give one of them")
        least = {"prompt_tokens": 1, "decode_tokens": 1, "context": 0, "batch": 1, "seed": 0}
        for name, value in least.items():
            given = getattr(self, name)
            if given is not None and given < value:
                raise RequestError(f"--{name.replace('_', '-')} is {given}; expected at least {value}")
        if self.prompts and self.prompts < LEAST_PROMPTS:
            raise RequestError(
                f"--prompts is {self.prompts}; expected at least {LEAST_PROMPTS}, or 0 to measure decoding only"
            )
        self.draw_lengths()

    def draw_lengths(self) -> Lengths:
        """The lengths of all prompts, the same each time.

        Raises:
            RequestError: the range has too few.
        """
        together = self.prompts * self.batch if self.batch > 1 else 0
        if self.lengths is None:
            drawn = [self.longest_prompt] * (1 + self.prompts + together)
        else:
            drawn = UnseenLengths(self.seed).take(self.lengths, 1 + self.prompts + together)
        rest = drawn[1 + self.prompts :]
        return Lengths(
            drawn[0],
            drawn[1 : 1 + self.prompts],
            [rest[at : at + self.batch] for at in range(0, len(rest), self.batch)],
        )
