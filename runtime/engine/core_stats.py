"""What an engine's core has done and what it holds, for people and for monitoring; and what its newest steps were."""

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class CoreStats:
    """Counters since the start, and the state when it was asked for.

    Attributes:
        steps: steps that ended.
        failed_steps: steps that failed.
        prompt_tokens: tokens of the prompts that were admitted.
        cached_tokens: how many of these the prefix cache had.
        restored_tokens: how many of these came from a tier.
        computed_tokens: tokens that steps computed.
        generated_tokens: tokens of answers; what steps choose after the end of one is none of them.
        forced_tokens: how many of these a constraint left no choice for, so that no step sampled them.
        finished: answers that ended, cancelled ones included.
        preemptions: how often a request gave its blocks back to others.
        draft_tokens: draft tokens that were tried.
        accepted_tokens: draft tokens that were right.
        speculating_parts: how often a request that speculates got its next token from a step, with a draft or without.
        batch_tokens: tokens of the newest step.
        batch_sequences: sequences of the newest step.
        running: requests that have a sequence.
        waiting: requests that wait for one.
        blocks: blocks of the arena.
        blocks_free: blocks that are not in use: `blocks_cached` and those without content.
        blocks_cached: blocks that are not in use, and whose content can be found again.
        blocks_shared: blocks that several sequences use.
        tiers: bytes, blocks and hits of the memory and disk tiers; None without them.
        launches: how often each kernel was launched.
    """

    steps: int = 0
    failed_steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    finished: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    speculating_parts: int = 0
    batch_tokens: int = 0
    batch_sequences: int = 0
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_shared: int = 0
    tiers: dict[str, int | bool] | None = None
    launches: dict[str, int] = field(default_factory=dict)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over tried draft tokens; None before the first."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step gave to a request that speculates, 1 without drafts; None before the first step."""
        return 1 + self.accepted_tokens / self.speculating_parts if self.speculating_parts else None


class StepRecord(NamedTuple):
    """One step that has ended.

    Attributes:
        end: when, in seconds of `time.perf_counter`.
        seconds: its time.
        decoding: sequences with one token.
        prompt_tokens: tokens of the other sequences.
        drafted: draft tokens.
    """

    end: float
    seconds: float
    decoding: int
    prompt_tokens: int
    drafted: int
