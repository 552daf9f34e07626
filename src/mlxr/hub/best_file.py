"""Which of a repository's GGUF models is fetched if nobody says: the best one that this machine has memory for.

Q4_K_M comes first, as with llama.cpp and Ollama: of the usual formats, it is the smallest that loses little. Then the
others of four bits, those of more, and those of fewer. Before anything is downloaded, the first bytes of a model's
files, in which it describes itself, are put into files that are as long and otherwise empty: from these, what it
takes is planned like that of any model. Where its first bytes cannot be had, its size decides.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from mlxr.compiler.errors import MlxrError
from mlxr.compiler.text import counted, size
from mlxr.hub import HubError
from mlxr.hub.choose_files import GgufModels, HubFile
from mlxr.hub.file_start import StartReader, write_starts

_USUAL = "Q4_K_M"
_ORDER = (
    *(_USUAL, "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "MXFP4", "MXFP4_MOE", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("Q5_K_M", "Q5_K_S", "Q5_K_L", "Q5_K_XL", "Q5_K", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0", "Q8_K_XL"),
    *("Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "IQ3_XXS"),
    *("Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "Q2_K_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"),
    *("BF16", "F16", "FP16", "F32"),
)
_TAG = re.compile(r"(?:^|[-._/])(?:UD-)?((?:I?Q\d\w*)|BF16|FP?16|F32|MXFP4\w*)$", re.IGNORECASE)
_MARGIN = 1.1
"""By how much a model takes more memory than its files, if nothing else is known."""


@dataclass(frozen=True)
class Need:
    """Memory that a model takes, and that there is.

    Attributes:
        needed_bytes: what it takes; None: only its size is known.
        free_bytes: what is free.
        owner: whose memory it is.
    """

    needed_bytes: int | None
    free_bytes: int
    owner: str

    def of(self, size_bytes: int) -> int:
        """Bytes of memory that a model takes whose files have so many bytes."""
        return self.needed_bytes or int(_MARGIN * size_bytes)

    @property
    def source(self) -> str:
        """From what this is known, for people."""
        return "by its plan" if self.needed_bytes is not None else "by the size of its files"


Planner = Callable[[Path | None], Need]
"""What the model in a GGUF file or a folder takes by its plan; of None, only what is free. Raises MlxrErrors."""


def best_file(
    repo: str, models: GgufModels, plan: Planner, start_of: StartReader, announce: Callable[[str], None]
) -> tuple[HubFile, ...]:
    """The files of the best model that fits.

    Args:
        repo: the repository.
        models: its GGUF models, by the path of each.
        plan: what a model takes.
        start_of: reads the first bytes of a file.
        announce: told what was chosen and why.

    Raises:
        HubError: none fits, or several are equally good.
        MlxrError: none is supported.
    """
    ordered = sorted(models, key=lambda key: (preference(key), sum(file.size_bytes for file in models[key])))
    tried: list[str] = []
    refusal: MlxrError | None = None
    least = float("inf")  # bytes of the smallest model that is too large
    for key in ordered:
        size_bytes = sum(file.size_bytes for file in models[key])
        if size_bytes >= least:
            tried.append(f"{_name(key)} is larger")
            continue
        same = [other for other in models if preference(other) == preference(key)]
        if len(same) > 1:
            raise HubError(
                f"{repo} has {len(models)} GGUF models, of which several are alike: {', '.join(same[:8])}; name one, "
                f"as {repo}:{PurePosixPath(same[0]).name}"
            )
        try:
            need = _need(models[key], plan, start_of)
        except HubError:
            raise
        except MlxrError as error:
            refusal = refusal or error
            tried.append(f"{_name(key)} is not supported")
            continue
        needed = need.of(size_bytes)
        if needed <= need.free_bytes:
            announce(_why(repo, key, len(models), needed, need, tried))
            return models[key]
        least = size_bytes
        tried.append(f"{_name(key)} takes {size(needed)}")
    if refusal is not None and least == float("inf"):
        raise refusal
    free = plan(None)
    raise HubError(
        f"{repo}: none of its {len(models)} GGUF models fits into the {size(free.free_bytes)} of memory that "
        f"{free.owner} has free: {', '.join(tried)}. Close other programs, or name one all the same, as "
        f"{repo}:{_name(ordered[-1])}"
    )


def _need(files: Sequence[HubFile], plan: Planner, start_of: StartReader) -> Need:
    with TemporaryDirectory(prefix="mlxr-") as folder:
        path = write_starts(files, Path(folder), start_of)
        return plan(path)


def _why(repo: str, key: str, count: int, needed: int, need: Need, tried: Sequence[str]) -> str:
    """What users read about the chosen file."""
    usual = ", the usual one" if _tag(key) == _USUAL else ""
    return (
        f"of the {counted(count, 'GGUF model')} of {repo}: {PurePosixPath(key).name}{usual}; {need.source} it takes "
        f"{size(needed)} of the {size(need.free_bytes)} that {need.owner} has free"
        + (f" ({', '.join(tried)})" if tried else "")
    )


def _tag(key: str) -> str:
    match = _TAG.search(key.removesuffix(".gguf").removesuffix(".GGUF"))
    return match[1].upper() if match else ""


def preference(key: str) -> int:
    """The place of a GGUF model among those of its repository, by the format in its name: the usual one is 0."""
    tag = _tag(key)
    return _ORDER.index(tag) if tag in _ORDER else len(_ORDER)


def _name(key: str) -> str:
    return _tag(key) or PurePosixPath(key).name


def fetched_before(models: GgufModels, names: Collection[str]) -> tuple[HubFile, ...] | None:
    """The files of a model of which one has a name that is known; None: there is none."""
    return next(
        (files for files in models.values() if any(PurePosixPath(file.path).name in names for file in files)), None
    )
