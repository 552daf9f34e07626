"""A step in two halves, so that there is time between them: it is launched, and later its tokens are read.

On hosts that pipeline both the step and the drawing of its tokens are lazy MLX graphs. The next step takes the drawn
tokens where they are, on the device, and is launched before anyone has read them; all else that it needs (positions,
slots, context lengths, the numbers that choose tokens) does not depend on them.

Whoever gives up a step that was launched (its sequence has ended, or the generation was closed) just frees or truncates
the sequence. The step still runs and writes its slot, whose block may have a new owner by then. That is harmless: steps
and copies are launched by one thread, each binds the arena token that the one before made, so the late write comes
before all that the new owner launches, and a slot is written by its owner before its owner reads it.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.device_sampling import draw_tokens
from mlxr.runtime.engine.sampling import Sampler, likeliest
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.host import Host, Logits


def launch_step(host: Host, pager: Pager, requests: Sequence[BatchRequest], tokens: mx.array | None = None) -> Logits:
    """Grows the requests' sequences and launches the step; the logits are lazy on hosts that pipeline.

    Args:
        host: where it runs.
        pager: of the host's arena.
        requests: the sequences' parts of the step.
        tokens: [tokens], int32: token ids on the device; those of the requests then stand for their number only.

    Raises:
        ArenaFullError: the arena cannot hold all requests; nothing has been appended.
        HostError: the step cannot be launched, or failed.
    """
    batch = Batch.build(requests, pager, host.plan.query_tile, tokens)
    if copies := pager.take_copies():
        host.copy_blocks(copies)
    return host.step(batch)


class Draws:
    """Tokens drawn from a step's logits: on the device where the host pipelines, else when they are read."""

    def __init__(self, host: Host, logits: Logits, rows: Sequence[int], samplers: Sequence[Sampler]) -> None:
        """Starts the step and the drawing on hosts that pipeline; does not wait.

        Args:
            host: what made the logits.
            logits: [rows, vocab], f32, as `Host.step` gives them.
            rows: for each token to be drawn, the row that it is drawn from; in ascending order.
            samplers: for each token, that of its sequence; all with the same options.

        Raises:
            HostError: the host cannot start the step.
        """
        self._host, self._logits, self._rows, self._samplers = host, logits, rows, samplers
        if not host.pipelines or not rows:
            return
        assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
        if list(rows) != list(range(len(logits))):
            self._logits = logits = logits[mx.array(list(rows))]
        sampling = samplers[0].sampling
        uniforms = [] if sampling.temperature == 0 else [sampler.uniform() for sampler in samplers]
        self._tokens = draw_tokens(logits, sampling, uniforms)
        # Nothing waits for this but `read`, which refuses broken logits as `Sampler.sample` does.
        self._greatest = mx.max(logits, axis=-1)
        self._tokens_to_read = host.copy_to_read(self._tokens)
        host.start(self._tokens, self._tokens_to_read, self._greatest, host.arena.token)

    def __len__(self) -> int:
        """How many tokens are drawn."""
        return len(self._rows)

    def tokens(self, indices: Sequence[int]) -> mx.array:
        """Some of the tokens, in this order, where they are: [indices], int32; on hosts that pipeline."""
        return self._tokens if list(indices) == list(range(len(self))) else self._tokens[mx.array(list(indices))]

    def read(self) -> list[int]:
        """Waits for the tokens.

        Raises:
            HostError: the step failed, or the logits have a NaN or +inf, or nothing but -inf.
        """
        if not self._rows:
            return []
        if not self._host.pipelines:
            logits = self._host.read(self._logits)
            return [sampler.sample(logits[row]) for row, sampler in zip(self._rows, self._samplers, strict=True)]
        tokens: list[int] = self._host.read(self._tokens_to_read).tolist()
        if not np.isfinite(self._host.read(self._greatest)).all():
            for row in self._host.read(self._logits):
                likeliest(row)
        return tokens
