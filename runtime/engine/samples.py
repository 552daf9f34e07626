"""The tokens sampled from a step's logits: on the device where the host pipelines, else when they are read."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.sampling import Row, Sampled, sample_rows
from mlxr.runtime.engine.sampling.device_choice import DeviceChoice
from mlxr.runtime.engine.sampling.device_sampling import sample_on_device
from mlxr.runtime.engine.sampling.rows import broken_logit, broken_logits
from mlxr.runtime.hosts.host import Host, Logits
from mlxr.runtime.hosts.likeliest import Likeliest, LikeliestOfSteps, MoreSteps


class Samples:
    """Tokens of one step, one for each `Row`."""

    def __init__(self, host: Host, logits: Logits, indices: Sequence[int], rows: Sequence[Row], later: int = 0) -> None:
        """Starts the step and the sampling on hosts that pipeline; does not wait.

        Args:
            host: the host that computes the logits.
            logits: [rows, vocab], f32, as `Host.step` returns them.
            indices: which row of the logits belongs to each of `rows`, in ascending order.
            rows: how the tokens are chosen.
            later: by how much the position of each token is greater than its row says; 0 on hosts that pipeline.

        Raises:
            HostError: the host cannot start the step.
        """
        self._host, self._rows, self._indices, self._later = host, rows, indices, later
        self._logits = logits
        self._chosen: Likeliest | None = None
        if not host.pipelines:
            return
        if not rows:
            # Nothing needs it, but to read it tells that the step has run: only then are K and V in the arena.
            self._end = host.copy_to_read(host.arena.token)
            wanted = [logits] if isinstance(logits, mx.array) and len(logits) else []  # rows that requests will read
            host.start(*wanted, self._end, host.arena.token)
            return
        assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
        if list(indices) != list(range(len(logits))):
            self._logits = logits = logits[mx.array(list(indices))]
        if len(rows) == 1 and rows[0].mask is None and rows[0].sampler.takes_greatest:
            self._chosen = host.likeliest_of(logits)
            if self._chosen is not None:
                host.start(self._chosen.tokens, host.arena.token)
                return
        self._on_device = sample_on_device(logits, rows)
        self._tokens_to_read = host.copy_to_read(self._on_device.tokens)
        host.start(*self._on_device.arrays, self._tokens_to_read, host.arena.token)

    def __len__(self) -> int:
        """How many tokens are sampled."""
        return len(self._rows)

    @property
    def tokens(self) -> mx.array:
        """The tokens on the device: [rows], int32. Only hosts that pipeline have them."""
        return self._on_device.tokens if self._chosen is None else self._chosen.tokens

    def read(self) -> list[Sampled]:
        """Waits for the tokens.

        Raises:
            HostError: the step failed.
        """
        if not self._rows:
            if self._host.pipelines:
                self._host.read(self._end)
            return []
        if not self._host.pipelines:
            logits = self._host.read(self._logits)
            if len(self._indices) != len(logits):
                logits = logits[list(self._indices)]
            return sample_rows(logits, self._rows, self._later)
        if self._chosen is not None:
            token, greatest = self._chosen.read()[:, 0]
            if np.isfinite(greatest.view(np.float32)):
                return [Sampled(int(token))]
            broken = broken_logit(float(greatest.view(np.float32)), int(token), self._host.plan.vocab_size)
            return [Sampled(0, error=broken)]
        return self._on_device.read(self._host.read, self._tokens_to_read)


class TokensOfSteps(NamedTuple):
    """What was chosen in steps that were launched together.

    Attributes:
        tokens: of each step, one for each row: [steps, rows].
        errors: what is wrong with single rows, by step and row; nearly always nothing.
    """

    tokens: npt.NDArray[np.int32]
    errors: dict[tuple[int, int], MlxrError]

    def sampled(self) -> list[list[Sampled]]:
        """The same, token by token."""
        found = [[Sampled(token) for token in tokens] for tokens in self.tokens.tolist()]
        for (step, row), error in self.errors.items():
            found[step][row] = Sampled(0, error=error)
        return found


class SamplesOfSteps:
    """Tokens of decode steps that are launched together, each of which takes those of the one before.

    Attributes:
        tokens: of the last step, on the device: [rows], int32.
    """

    def __init__(
        self,
        host: Host,
        launch: Callable[[npt.NDArray[np.int32] | mx.array], Logits],
        first: npt.NDArray[np.int32] | mx.array,
        choice: DeviceChoice,
        uniforms: Sequence[mx.array | None],
    ) -> None:
        """Starts the steps, on a host that pipelines; does not wait.

        Args:
            host: the host that runs them.
            launch: as `Host.decode` gave it.
            first: the token ids of the first step.
            choice: how the tokens are chosen.
            uniforms: of each step, as the choice gave them.

        Raises:
            HostError: the host cannot start the steps.
        """
        self._host, self._num_rows = host, len(first)
        self._logits: list[mx.array] = []
        tokens, chosen, greatest = first, list[mx.array](), list[mx.array]()
        for numbers in uniforms:
            logits = launch(tokens)
            assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
            self._logits.append(logits)
            greatest.append(mx.max(logits, axis=-1))
            tokens = choice.tokens(logits, greatest[-1], numbers)
            chosen.append(tokens)
        self.tokens = chosen[-1]
        self._to_read = host.to_read_together([*chosen, *greatest])
        host.start(self.tokens, *self._to_read, host.arena.token)

    def read(self) -> TokensOfSteps:
        """Waits for the tokens.

        Raises:
            HostError: the steps failed; what is wrong with a single row is told with this row.
        """
        read = [self._host.read(array).reshape(-1) for array in self._to_read]
        numbers = np.concatenate(read).view(np.int32).reshape(2, len(self._logits), self._num_rows)
        finite, errors = np.isfinite(numbers[1].view(np.float32)), dict[tuple[int, int], MlxrError]()
        if not finite.all():
            for step, row in np.argwhere(~finite).tolist():
                errors[step, row] = broken_logits(self._host.read(self._logits[step])[row])
        self._logits.clear()  # a step may be kept as the pattern of the next one
        return TokensOfSteps(numbers[0], errors)


class ChosenByHost:
    """The same of steps that the host runs together with their choice."""

    def __init__(self, host: Host, steps: LikeliestOfSteps, before: int = 0, early: int = 0) -> None:
        """Takes steps that have been started.

        Args:
            host: the host that runs them.
            steps: as `Host.likeliest_of_steps` gave them.
            before: see `LikeliestOfSteps.read`.
            early: likewise.
        """
        self._host, self._steps, self._before, self._early = host, steps, before, early

    @property
    def tokens(self) -> mx.array:
        """Of the last step, on the device: [rows], int32; only until others have been started."""
        return self._steps.tokens

    def go_on(self, more: MoreSteps) -> "ChosenByHost | None":
        """Starts steps after these; see `Host.go_on`."""
        steps = self._host.go_on(self._steps, more)
        return None if steps is None else ChosenByHost(self._host, steps)

    @property
    def left(self) -> int:
        """See `LikeliestOfSteps.left`."""
        return self._steps.left

    @property
    def is_ending(self) -> bool:
        """See `LikeliestOfSteps.is_ending`."""
        return self._steps.is_ending

    def run_on(self, count: int, until: int, called: Callable[[], bool] | None) -> int | None:
        """See `Host.run_on`."""
        return self._host.run_on(self._steps, count, until, called)

    def part(self, before: int, early: int) -> "ChosenByHost":
        """What is read together: see `LikeliestOfSteps.read`."""
        return ChosenByHost(self._host, self._steps, before, early)

    def read(self) -> TokensOfSteps:
        """See `SamplesOfSteps.read`."""
        numbers = self._steps.read(self._before, self._early)
        tokens, greatest, errors = numbers[0].copy(), numbers[1].view(np.float32), dict[tuple[int, int], MlxrError]()
        if not isfinite(np.add.reduce(greatest, axis=None)):  # one call, which may fail where all are finite
            finite = np.isfinite(greatest)
            vocab_size = self._host.plan.vocab_size
            for step, row in np.argwhere(~finite).tolist():
                errors[step, row] = broken_logit(float(greatest[step, row]), int(tokens[step, row]), vocab_size)
        return TokensOfSteps(tokens, errors)
