"""Checks what is measured: the logits of a row's own work against `reference`, in f32, on the same weights.

`reference` computes with MLX's f32 ops on the default device. The model has two layers, since f32 is slow; embedding,
layers and output have their full size, and the sequences their full number and length. The arena of both holds the same
random keys and values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from gpu.ours import Loaded, compiled
from gpu.weights import RandomWeights
from gpu.work import Row, spec_document

LAYERS = 2
TOLERANCE, PROMPT_TOLERANCE = 2e-2, 3e-2
"""The limit of the relative norm, for bf16 activations against f32: 2 layers have shown up to 1.7e-2 in decode, and
2.1e-2 after 4096 random tokens, whose values attention averages to almost nothing. Wrong logits differ by about 1."""
PEER_TOLERANCE = 0.3
"""The limit of the relative norm between two bf16 implementations of all layers; unrelated logits differ by 1.4."""
CHOICE_TOLERANCE = 0.25
"""In standard deviations of a row of logits; the largest of 128,000 random logits is 4.5 above the mean."""
_STEPS = 3
_PROMPT, _GENERATED = 7, 12


class WrongOutputError(Exception):
    """Logits are not those of the reference: the row must not be reported."""


@dataclass(frozen=True)
class Checked:
    """How far from the reference.

    Attributes:
        error: the largest relative norm of a step's difference.
        rows: rows of logits compared.
    """

    error: float
    rows: int


def relative_norm(ours: np.ndarray, theirs: np.ndarray) -> float:
    """|ours - theirs| / |theirs|; NaN where anything is."""
    theirs = theirs.astype(np.float64)
    return float(np.linalg.norm(ours.astype(np.float64) - theirs) / np.linalg.norm(theirs))


class Checker:
    """Checks rows of one model and format; the reference's numbers are decoded once."""

    def __init__(self, weights: RandomWeights, host: str) -> None:
        """Decodes nothing yet.

        Args:
            weights: the model's weights.
            host: the host whose output is checked.
        """
        self._weights, self._host = weights, host
        self._numbers: dict[str, mx.array] = {}

    def check(self, row: Row, document: Mapping[str, Any]) -> Checked:
        """Runs a row's work on the host and on the reference, and compares.

        Args:
            row: the row.
            document: the spec that will be measured.

        Raises:
            WrongOutputError: the logits differ by more than rounding, or are not numbers.
        """
        shallow = {**document, "model": {**document["model"], "num_layers": LAYERS}}
        artifact = compiled(shallow)
        ours = Loaded(artifact, self._host, self._weights.as_read_by(self._host, artifact.plan.weights))
        exact = compiled(spec_document(row, layers=LAYERS, exact=True, chunk=document["prefill_chunk"]))
        if not self._numbers:
            self._numbers = self._weights.numbers(exact.plan.weights)
        theirs = Loaded(exact, "reference", self._numbers)
        random = np.random.default_rng()
        if row.kind == "decode":
            pairs = self._decode(row, ours, theirs, random)
        else:
            pairs = self._prefill(row, ours, theirs, random)
        errors = [relative_norm(a, b) for a, b in pairs]
        worst = float(np.max(errors))  # NaN if one is
        most = PROMPT_TOLERANCE if row.kind == "prefill" else TOLERANCE
        if not worst <= most:
            raise WrongOutputError(f"logits differ from the reference by {worst:.3g} of their norm, at most {most}")
        _check_generation(row.batch, ours, theirs, random)
        mx.clear_cache()  # arrays that the CPU has seen lie in managed memory
        return Checked(worst, sum(len(a) for a, _ in pairs))

    def _decode(
        self, row: Row, ours: Loaded, theirs: Loaded, random: np.random.Generator
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        own, pairs = ours.hold(row.batch, row.tokens), []
        reference = theirs.hold(row.batch, row.tokens)
        for step in range(_STEPS):
            tokens = random.integers(0, ours.plan.vocab_size, (row.batch, 1)).tolist()
            logits = ours.step(own, row.tokens + step, tokens)
            pairs.append((logits, theirs.step(reference, row.tokens + step, tokens)))
        ours.release(own)
        theirs.release(reference)
        return pairs

    def _prefill(
        self, row: Row, ours: Loaded, theirs: Loaded, random: np.random.Generator
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """A prompt, and a step after it, which sees the prompt's keys and values in the cache."""
        (own,), (reference,) = ours.hold(1, 0), theirs.hold(1, 0)
        prompt = random.integers(0, ours.plan.vocab_size, row.tokens + 1).tolist()
        logits = [ours.read_prompt(own, prompt[:-1]), ours.step([own], row.tokens, [prompt[-1:]])]
        wanted = [theirs.read_prompt(reference, prompt[:-1]), theirs.step([reference], row.tokens, [prompt[-1:]])]
        ours.release([own])
        theirs.release([reference])
        return list(zip(logits, wanted, strict=True))


def _check_generation(batch: int, ours: Loaded, theirs: Loaded, random: np.random.Generator) -> None:
    """Generates, as is timed, and checks that the reference could have chosen these tokens.

    Raises:
        WrongOutputError: a token's logit is below the largest by more than rounding explains.
    """
    prompts = random.integers(0, ours.plan.vocab_size, (batch, _PROMPT)).tolist()
    completions = ours.generate(prompts, _GENERATED).finish()
    ids, start = theirs.hold(batch, 0), 0
    new = prompts
    for step in range(_GENERATED):
        logits = theirs.step(ids, start, new)
        start += len(new[0])
        new = [[completion.token_ids[step]] for completion in completions]
        chosen = logits[np.arange(batch), [token for (token,) in new]]
        gap = float(np.max((logits.max(axis=1) - chosen) / logits.std(axis=1)))
        if not gap <= CHOICE_TOLERANCE:
            raise WrongOutputError(
                f"generated token {step + 1} is not the reference's: its logit is {gap:.3g} standard deviations below "
                f"the largest, at most {CHOICE_TOLERANCE}"
            )
    theirs.release(ids)


def check_against_peer(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The relative norm between MLXR's and mlx-lm's logits, all layers, both in bf16 on the same weights.

    Raises:
        WrongOutputError: it is more than rounding of all layers.
    """
    error = relative_norm(ours, theirs)
    if not error <= PEER_TOLERANCE:
        raise WrongOutputError(f"logits differ from mlx-lm's by {error:.3g} of their norm, at most {PEER_TOLERANCE}")
    return error
