"""Plans several models for several machines, and says which of each repository or folder to take."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mlxr.compiler.errors import MlxrError
from mlxr.fit.candidate import Candidate, candidates
from mlxr.fit.fit import Fit, fit
from mlxr.fit.machine import Machine
from mlxr.hub.download import HubProgress
from mlxr.loading.options import LoadOptions


@dataclass(frozen=True)
class FitRow:
    """A model on a machine.

    Attributes:
        asked: what the user named: a repository, a folder, a file.
        name: what other commands take for this model of it.
        size_bytes: of its files; None: not known.
        place: as `Candidate.place`.
        machine: where.
        fit: what it takes and gives there; None: it cannot be planned.
        error: why it cannot be planned; None: it can.
    """

    asked: str
    name: str
    size_bytes: int | None
    place: int
    machine: Machine
    fit: Fit | None
    error: str | None = None

    @property
    def fits(self) -> bool:
        """Whether it runs there."""
        return self.fit is not None and self.fit.refusal is None


def fit_rows(
    models: Sequence[str],
    machines: Sequence[Machine],
    options: LoadOptions,
    context: int | None,
    tell: Callable[[str], None],
    fetching: HubProgress,
) -> Iterator[FitRow]:
    """Plans each model for each machine, one after another.

    Args:
        models: repositories, folders, files, names.
        machines: the machines.
        options: how they would be loaded.
        context: as for `fit`.
        tell: called with what is being done.
        fetching: as `candidates`.

    Raises:
        MlxrError: a model that was named alone cannot be found or planned; of several, a row says so.
    """
    for model in models:
        with TemporaryDirectory(prefix="mlxr-") as folder:
            try:
                found = candidates(model, Path(folder), fetching)
            except MlxrError as error:
                if len(models) == 1:
                    raise
                yield from _refused((model, model, None, 0), machines, error)
                continue
            for candidate in found:
                alone = len(models) == len(found) == 1
                yield from _rows(model, candidate, machines, options, context, tell, alone=alone)
                for copied in Path(folder).iterdir():  # a repository may have hundreds of models
                    shutil.rmtree(copied)


def _rows(
    asked: str,
    candidate: Candidate,
    machines: Sequence[Machine],
    options: LoadOptions,
    context: int | None,
    tell: Callable[[str], None],
    *,
    alone: bool,
) -> Iterator[FitRow]:
    def say(what: str) -> None:
        tell(f"{candidate.name}: {what}")

    about, done = (asked, candidate.name, candidate.size_bytes, candidate.place), 0
    try:
        say("reading headers")
        headers = candidate.headers()
        for machine in machines:
            yield FitRow(*about, machine, fit(headers, machine, options, context, say))
            done += 1
    except MlxrError as error:
        if alone:
            raise
        yield from _refused(about, machines[done:], error)


def _refused(
    about: tuple[str, str, int | None, int], machines: Sequence[Machine], error: MlxrError
) -> Iterator[FitRow]:
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    yield from (FitRow(*about, machine, None, line) for machine in machines)


def best_of(rows: Iterable[FitRow]) -> FitRow | None:
    """The one to take of a repository or folder, on one machine: as `mlxr pull` chooses, the usual one if it fits.

    One that has room for a good context comes before any that has not.
    """
    fitting = sorted((row for row in rows if row.fits), key=lambda row: (row.place, row.size_bytes or 0))
    good = [row for row in fitting if row.fit is not None and row.fit.has_good_context]
    return next(iter(good or fitting), None)
