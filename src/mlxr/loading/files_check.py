"""Checks a model's files before anything is compiled for it."""

from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.eagle_head import EagleHead
from mlxr.loading.options import LoadOptions
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer, read_tokenizer


@dataclass
class FilesCheck:
    """Compares the files of a model that is being loaded with its spec, and reads its tokenizer.

    Attributes:
        options: how it is loaded.
        of_files: whether the spec comes from these very weights.
        read: the tokenizer, once it has been read.
        head: the head of other files that guesses for it; None: there is none.
    """

    options: LoadOptions
    of_files: bool
    read: ModelTokenizer | None = None
    head: EagleHead | None = None

    def path(self, spec: ModelSpec, own: Path | None) -> Path:
        """The path of the weights.

        Args:
            spec: the model's.
            own: its own weights; None: it has none.

        Raises:
            WeightsError: there are none.
        """
        chosen = self.options.weights or own
        if not chosen:
            raise WeightsError(f"{spec.name} comes without weights: name a file or folder of them (--weights W)")
        return Path(chosen)

    def __call__(self, spec: ModelSpec, own: Path | None) -> None:
        """Checks the files of a model that is not split; ranks of a split one check theirs once they are connected.

        Args:
            spec: the model's.
            own: its own weights; None: it has none.

        Raises:
            WeightsError: there are no weights, or they are of another model.
            TokenizerError: a tokenizer that was named cannot be used, or has more tokens than the model.
            RequestError: there must be a tokenizer, and there is none that can be used.
            MlxrError: the weights' own files describe another model.
        """
        from mlxr.loading.compare_spec import check_tensors_first  # noqa: PLC0415 (imports what reads config.json)

        if spec.parallel is not None:
            return
        weights = self.path(spec, own)
        self.compare(spec, weights)
        check_tensors_first(spec, weights, None if self.head is None else self.head.file)
        self.read = read_tokenizer(
            weights, self.options.tokenizer, spec.model.vocab_size, required=self.options.needs_text
        )

    def compare(self, spec: ModelSpec, weights: Path) -> None:
        """Compares a spec with the files of weights, if it does not come from these; see `compare_spec`."""
        if self.of_files:
            return
        from mlxr.loading.compare_spec import check_spec  # noqa: PLC0415 (imports what reads config.json)

        changes = self.options.changes
        check_spec(spec, weights, changes.accepted_keys, changes.force_context)
