"""MLXR as an engine: the model is imported, compiled and cached as `mlxr run` does it, on host cpu."""

from pathlib import Path
from typing import Any

from mlxr.bench.sequences import Sequences
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.version import VERSION
from mlxr.loading.imported_model import import_model
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.engine.model import Model
from peers.worker import Engine, serve


class Mlxr(Engine):
    """A loaded model and its sequences."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Loads the file; with `paged`, one sequence has a block table too."""
        source, context, batch = options["source"], options["context"], options["batch"]
        compute = options.get("compute", "fast")
        if options.get("paged"):
            spec, _ = import_model(Path(source), ImportOptions(context, max_sequences=batch, compute=compute))
            cache = spec.cache.model_copy(update={"mode": "paged"})
            path = cache_folder("peer-specs") / f"{spec.name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dump_spec(spec.model_copy(update={"cache": cache})), encoding="utf-8")
            artifact, _ = resolve_artifact(str(path))
        else:
            artifact, _ = resolve_artifact(source, Changes(context, sequences=batch, compute=compute))
        self._model = Model(artifact, source, host="cpu", threads=options["threads"])
        self._sequences: dict[int, Sequences] = {}
        plan = artifact.plan
        memory = plan.programs["cpu"].memory
        return {"version": f"mlxr {VERSION}", "planned_bytes": memory.weights_bytes + memory.arena_bytes}

    def _of(self, batch: int) -> Sequences:
        """The sequences of a batch; those of other batches are freed."""
        for other, sequences in self._sequences.items():
            if other != batch:
                sequences.close()
        return self._sequences.setdefault(batch, Sequences(self._model, batch))

    def prefill(self, tokens: int) -> float:
        """See Engine."""
        return self._of(1).restart(tokens)

    def decode(self, context: int, batch: int, tokens: int) -> tuple[float, int]:
        """See Engine."""
        sequences = self._of(batch)
        sequences.resize(context)
        return sum(sequences.decode(tokens)), tokens

    def first_token(self) -> None:
        """See Engine."""
        for _ in self._model.start([[5, 6, 7, 8, 9]], max_tokens=1):
            pass


if __name__ == "__main__":
    serve(Mlxr())
