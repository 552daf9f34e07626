"""What is refused of a model's files before anything is compiled for it."""

from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer, read_tokenizer


@dataclass
class FilesCheck:
    """Compares the files of a model that is being loaded with its spec, and reads its tokenizer.

    Attributes:
        weights: those that were named; None: the model's own.
        tokenizer: the one that was named; None: the model's own.
        changes: to its spec.
        of_files: whether the spec comes from these very weights.
        needs_text: whether it is of no use without a tokenizer.
        read: the tokenizer, once it has been read.
    """

    weights: str | Path | None
    tokenizer: str | Path | None
    changes: Changes
    of_files: bool
    needs_text: bool
    read: ModelTokenizer | None = None

    def path(self, spec: ModelSpec, own: Path | None) -> Path:
        """The path of the weights.

        Args:
            spec: the model's.
            own: its own weights; None: it has none.

        Raises:
            WeightsError: there are none.
        """
        chosen = self.weights or own
        if not chosen:
            raise WeightsError(f"{spec.name} comes without weights: name a file or folder of them (--weights W)")
        return Path(chosen)

    def __call__(self, spec: ModelSpec, own: Path | None) -> None:
        """Checks; what a model's ranks must tell each other first is left to them.

        Args:
            spec: the model's.
            own: its own weights; None: it has none.

        Raises:
            WeightsError: there are no weights, or they are of another model.
            TokenizerError: a tokenizer that was named cannot be used, or has more tokens than the model.
            RequestError: there must be a tokenizer, and there is none that can be used.
            MlxrError: the weights' own files describe another model.
        """
        from mlxr.check_first import check_tensors_first  # noqa: PLC0415 (slow to import: not for what is cached)

        if spec.parallel is not None:
            return
        weights = self.path(spec, own)
        if not self.of_files:
            self.check_spec(spec, weights)
        check_tensors_first(spec, weights)
        self.read = read_tokenizer(weights, self.tokenizer, spec.model.vocab_size, required=self.needs_text)

    def check_spec(self, spec: ModelSpec, weights: Path) -> None:
        """Compares a spec with the files of weights that it does not come from; see `compare_spec`."""
        from mlxr.compare_spec import check_spec  # noqa: PLC0415 (imports what reads config.json)

        check_spec(spec, weights, self.changes.accepted_keys, self.changes.force_context)
