"""Check a weight file's tensors against those that an artifact wants, by its header alone."""

from collections.abc import Iterable, Sequence
from re import Pattern

from mlxr.compiler.artifact import TensorSource, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.weight_file import WeightFile, quoted

_MAX_LISTED = 8


def tensor_name(part: TensorSource, file: WeightFile) -> str:
    """The name of `part` in files of this format."""
    name: str = part.gguf if file.format == "gguf" else part.safetensors
    return name


def check_tensors(file: WeightFile, weights: Sequence[WeightPlan], ignored: Sequence[Pattern[str]]) -> None:
    """Refuse a file whose tensors are not exactly those of `weights`, in shape and in a type that can be read.

    Raises:
        WeightsError: tensors are missing, of another shape or type, or in the file without use and not `ignored`.
    """
    wanted = {tensor_name(part, file): part for weight in weights for part in weight.parts}
    missing = [f"{quoted(name)} ({part.name})" for name, part in wanted.items() if name not in file.tensors]
    misshapen, unreadable = [], []
    for name, part in wanted.items():
        info = file.tensors.get(name)
        if info is None:
            continue
        if info.shape != part.shape:
            misshapen.append(f"{quoted(name)} ({part.name}) got {list(info.shape)}, expected {list(part.shape)}")
        if not (info.element_type.is_readable and info.element_type.is_float):
            unreadable.append(f"{quoted(name)} ({part.name}) is {info.type}")
    extra = [
        quoted(name)
        for name in file.tensors
        if name not in wanted and not any(pattern.fullmatch(name) for pattern in ignored)
    ]
    hint = ""
    if (len(missing) + len(misshapen)) * 2 > len(wanted):
        hint = "; these look like weights of another model: compile the spec that belongs to them"
    if missing:
        found = f"; it holds, without use for the model: {_listed(extra)}" if extra else ""
        raise WeightsError(
            f"{file.path}: {len(missing)} of {len(wanted)} tensors are missing: {_listed(missing)}{found}{hint}"
        )
    if misshapen:
        raise WeightsError(f"{file.path}: {len(misshapen)} tensors have the wrong shape: {_listed(misshapen)}{hint}")
    if unreadable:
        raise WeightsError(
            f"{file.path}: {len(unreadable)} tensors have a type that cannot be read as weights: "
            f"{_listed(unreadable)}; convert them to BF16, F16 or F32, "
            "or to a quantised GGUF type that the `gguf` package can dequantise"
        )
    if extra:
        raise WeightsError(
            f"{file.path}: holds {len(extra)} tensors that the model has no use for: {_listed(extra)}; "
            "the spec may lack something that these weights have, such as biases or an untied output"
        )


def _listed(items: Iterable[str]) -> str:
    every = list(items)
    more = f" and {len(every) - _MAX_LISTED} more" if len(every) > _MAX_LISTED else ""
    return ", ".join(every[:_MAX_LISTED]) + more
