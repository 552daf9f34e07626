"""How much a model's answers change when single weights lose precision: measured on a text.

A change of a weight that is small moves the answers by a divergence that is proportional to the square of its error. So
each group of tensors (those of one kind in a third of the layers) is quantised once, alone, and the divergence from the
original is measured; what another format costs follows from its error. The measured model has its weights in f32, in a
file for this alone, in which the group's numbers are replaced by what is left of them.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

from mlxr.bench.text_windows import Floats as Doubles
from mlxr.bench.text_windows import Window, log_shares
from mlxr.compiler.errors import RequestError
from mlxr.compiler.spec.change import Changes
from mlxr.loading.load import load_with
from mlxr.loading.options import LoadOptions
from mlxr.quantise.block_quantiser import Floats, block_sizes, quantise_rows, type_number
from mlxr.quantise.mixtures import MIXTURES, fitting
from mlxr.quantise.requantise import GgufSource, Quantisation, write_quantised
from mlxr.quantise.source_tensor import SourceTensor
from mlxr.runtime.engine.model import Model
from mlxr.runtime.weights.gguf_header import read_gguf_header
from mlxr.runtime.weights.stored_tensor import StoredTensor

PROBES = ("q4_k", "q3_k", "q2_k")
"""The format in which groups are measured. A tensor that lies in the first one already, or in one like it, loses
nothing by that, which says nothing of others: it is measured in the next one."""
_NEARLY_NOTHING = 0.05
"""Of the error of the next probe; the usual share is 0.2."""
_SAMPLED_ROWS = 192
_THIRDS = 3
_MOST_SHARES = 1 << 27
"""Probabilities of the original that are kept: so many tokens times the vocabulary."""
_LAYER = re.compile(r"blk\.(\d+)\.(.*)")


@dataclass(frozen=True)
class Costs:
    """What each format of each tensor costs.

    Attributes:
        divergence: in nats, by tensor and format.
        size_bytes: in the file, by tensor and format.
    """

    divergence: Mapping[str, Mapping[str, float]]
    size_bytes: Mapping[str, Mapping[str, int]]


class Sensitivity:
    """Measures a model, given as a source, on windows of a text."""

    def __init__(
        self, source: GgufSource, how: Quantisation, host: str, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        self._source, self._how, self._host = source, how, host
        self._probes: dict[str, str] = {}
        self._progress = progress or (lambda *_: None)

    def costs(self, names: Sequence[str], formats: Sequence[str], text: str, window: int, tokens: int) -> Costs:
        """The costs of formats of these tensors.

        Args:
            names: of the tensors.
            formats: that they may have; a tensor whose rows are no whole blocks of one has a similar one instead.
            text: what the model reads.
            window: tokens that it reads at a time.
            tokens: of the text, at most.

        Raises:
            MlxrError: the model cannot be loaded, or the text is too short.
        """
        errors, sizes = self._errors(names, formats)
        divergence: dict[str, dict[str, float]] = {}
        with self._file() as path:
            stored = read_gguf_header(path).tensors
            windows, original = self._original(path, text, window, tokens)
            groups = list(self._groups(names))
            for done, group in enumerate(groups):
                self._progress(f"sensitivity of {group[0]}", done, len(groups))
                for name in group:
                    self._patch(stored[name], self._source.tensors[name], self._probes[name])
                lost = self._divergence(path, windows, original)
                for name in group:
                    self._patch(stored[name], self._source.tensors[name], None)
                error = sum(errors[name][self._probes[name]] for name in group)
                factor = lost / error if error > 0 else 0.0
                for name in group:
                    divergence[name] = {format: factor * value for format, value in errors[name].items()}
        return Costs(divergence, sizes)

    def _errors(
        self, names: Sequence[str], formats: Sequence[str]
    ) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
        """Sums of squared errors, estimated from some rows of each tensor, and sizes."""
        errors: dict[str, dict[str, float]] = {}
        sizes: dict[str, dict[str, int]] = {}
        for done, name in enumerate(names):
            self._progress(f"errors of {name}", done, len(names))
            tensor = self._source.tensors[name]
            rows, weights = _sample(tensor), self._weights(tensor)
            errors[name], sizes[name] = {}, {}
            for format in dict.fromkeys(fitting(each, tensor.columns) for each in (*formats, *PROBES)):
                lost = (self._rounded(rows, format, weights) - rows).astype(np.float64) ** 2
                weighed = lost if weights is None else lost * (weights / max(float(weights.mean()), 1e-30))
                errors[name][format] = float(weighed.sum(axis=1).mean()) * tensor.num_rows
                elements, size = block_sizes(format)
                sizes[name][format] = tensor.num_rows * tensor.columns // elements * size
            self._probes[name] = _probe(errors[name], tensor.columns)
            wanted = {fitting(each, tensor.columns) for each in formats}
            sizes[name] = {format: size for format, size in sizes[name].items() if format in wanted}
        return errors, sizes

    def _weights(self, tensor: SourceTensor) -> Floats | None:
        """The importance of columns, the mean of all matrices."""
        found = self._how.importance.of(tensor.name, tensor.shape) if self._how.importance is not None else None
        return None if found is None else np.asarray(found.mean(axis=0), np.float32)

    def _rounded(self, rows: Floats, format: str, weights: Floats | None) -> Floats:
        """What is left of rows in a format."""
        if format in ("f16", "f32", "bf16"):
            return rows.astype(np.float16).astype(np.float32) if format == "f16" else rows
        written = quantise_rows(rows, format, weights, self._how.threads)
        left: Floats = gguf.dequantize(written, type_number(format))
        return left

    @contextmanager
    def _file(self) -> Iterator[Path]:
        """The model in f32, in a file of its own."""
        with tempfile.TemporaryDirectory(prefix="mlxr-quantise-") as folder:
            path = Path(folder) / "model.gguf"
            write_quantised(self._source, path, Quantisation(MIXTURES["f32"], requantise=True), self._progress)
            yield path

    def _patch(self, stored: StoredTensor, tensor: SourceTensor, format: str | None) -> None:
        """Writes a tensor's numbers into the file, as a format leaves them; None: as they are."""
        weights = self._weights(tensor)
        with stored.file.open("r+b") as stream:
            for first, numbers in tensor.slabs():
                left = numbers if format is None else self._rounded(numbers, format, weights)
                stream.seek(stored.offset + 4 * first * tensor.columns)
                stream.write(np.ascontiguousarray(left, np.float32).data.cast("B"))

    def _loaded(self, path: Path, window: int) -> Model:
        changes = Changes(needed_context=window, accepted_keys=self._source.accepted_keys)
        return load_with(path, LoadOptions(host=self._host, changes=changes))

    def _original(self, path: Path, text: str, window: int, tokens: int) -> tuple[list[Window], list[list[Doubles]]]:
        with self._loaded(path, window) as model:
            windows = windows_of(model, text, window, min(tokens, _MOST_SHARES // model.artifact.spec.model.vocab_size))
            return windows, [[rows.astype(np.float32) for rows in log_shares(model, each)] for each in windows]

    def _divergence(self, path: Path, windows: Sequence[Window], original: Sequence[Sequence[Doubles]]) -> float:
        total, count = 0.0, 0
        with self._loaded(path, max(len(each.tokens) for each in windows)) as model:
            for each, kept in zip(windows, original, strict=True):
                for ours, theirs in zip(log_shares(model, each), kept, strict=True):
                    total += float((np.exp(theirs, dtype=np.float64) * (theirs - ours)).sum())
                    count += len(ours)
        return max(0.0, total / count)

    def _groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Tensors that are measured together."""
        layers = max(1, self._source.facts.layers)
        groups: dict[tuple[str, int], list[str]] = {}
        for name in names:
            match = _LAYER.match(name)
            key = (match[2], int(match[1]) * _THIRDS // layers) if match else (name, 0)
            groups.setdefault(key, []).append(name)
        yield from groups.values()


def _probe(errors: Mapping[str, float], columns: int) -> str:
    """The format in which a tensor with these errors is measured."""
    probes = [fitting(each, columns) for each in PROBES]
    for format, coarser in pairwise(probes):
        if errors[format] > _NEARLY_NOTHING * errors[coarser]:
            return format
    return probes[-1]


def windows_of(model: Model, text: str, window: int, tokens: int) -> list[Window]:
    """Windows of so many tokens of a text."""
    from mlxr.bench.text_windows import text_windows  # noqa: PLC0415 (beside its name here)

    tokenizer = model.require_tokenizer()
    ids = tokenizer.encode(text, add_special=False)[:tokens]
    if len(ids) < min(64, tokens):
        raise RequestError(f"--text has {len(ids)} tokens; expected at least 64, to measure divergences")
    return text_windows(ids, window, begin=tokenizer.bos_id if tokenizer.adds_bos else None)


def _sample(tensor: SourceTensor) -> Floats:
    """Some rows, spread over the tensor; the same ones each time."""
    count = min(tensor.num_rows, _SAMPLED_ROWS)
    runs = np.linspace(0, tensor.num_rows - 1, count).astype(int)
    return np.concatenate([tensor.rows(int(row), int(row) + 1) for row in np.unique(runs)])
