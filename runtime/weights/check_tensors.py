"""Compares the tensors in a weight file's header with those that an artifact needs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from re import Pattern

from mlxr.compiler.artifact import TensorSource, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import TensorError, expected_names, find_recipe, open_tensor, rows_in_file
from mlxr.runtime.weights.stored_tensor import quoted
from mlxr.runtime.weights.tensor_rows import TensorRows
from mlxr.runtime.weights.weight_file import WeightFile

_MAX_LISTED = 8


def check_tensors(
    file: WeightFile,
    weights: Sequence[WeightPlan],
    ignored: Sequence[Pattern[str]],
    all_weights: Sequence[WeightPlan] = (),
) -> None:
    """Refuses a file whose tensors are not exactly those of a model, in shape and in a type that can be read.

    Args:
        file: the file.
        weights: the weights to read.
        ignored: tensors whose whole names match one of these may be unused.
        all_weights: the model's weights, where `weights` are only a rank's part of them; empty: they are all.

    Raises:
        WeightsError: tensors are missing, of another shape or type, in another format than the quantised one that the
            artifact reads, or unused and not `ignored`.
    """
    mapped = MappedWeights(file)  # nothing is mapped before something is read
    parts = [part for weight in all_weights or weights for part in weight.parts]
    wanted = {part.name: part for part in parts if not part.is_of_adapters}
    missing = {name: part for name, part in wanted.items() if find_recipe(file, part) is None}
    tensors: list[TensorRows] = []
    wrong: list[str] = []
    for part in wanted.values():
        if part.name in missing:
            continue
        try:
            tensors.append(open_tensor(mapped, part))
        except TensorError as error:
            wrong.append(error.what)
    used = {plane.name for tensor in tensors for planes in tensor.pieces for plane in planes}
    hint = ""
    if (len(missing) + len(wrong)) * 2 > len(wanted):
        hint = f"; these look like weights of another model: {compile_command(file)}"
    if missing:
        names = [
            f"{' or '.join(quoted(name) for name in expected_names(file, p))} ({p.name})" for p in missing.values()
        ]
        extra = _extra(file, used, ignored)
        also = f"; it holds, without use for the model: {_listed(extra)}" if extra else ""
        raise WeightsError(
            f"{file.path}: lacks {len(missing)} of the model's {len(wanted)} tensors: {_listed(names)}{also}{hint}"
        )
    if wrong:
        raise WeightsError(
            f"{file.path}: these tensors have another shape or type than the model's: {_listed(wrong)}"
            f"{hint or f'; {compile_command(file)}'}"
        )
    _check_formats(file, tensors, wanted)
    _check_coverage(file, tensors, ignored)
    if extra := _extra(file, used, ignored):
        raise WeightsError(
            f"{file.path}: holds tensors that the model has no use for: {_listed(extra)}; "
            "the spec may lack something that these weights have, such as biases or an untied output; "
            f"{compile_command(file)}"
        )
    for weight in weights if all_weights else ():
        for part in weight.parts:
            open_tensor(mapped, part)


def compile_command(file: WeightFile) -> str:
    """Says how to get an artifact that fits the file."""
    source = file.path if file.format == "gguf" else file.path.parent
    return (
        f"`mlxr run {source}` runs these weights as they are; `mlxr import {source} -o spec.yaml` and "
        "`mlxr-compile spec.yaml -o DIR` compile for them"
    )


def _check_formats(file: WeightFile, tensors: Iterable[TensorRows], wanted: dict[str, TensorSource]) -> None:
    """Checks that a quantised weight has the artifact's format. To floats, all formats can be converted."""
    other = [
        f"{tensor.name} is {tensor.format}, the artifact reads {wanted[tensor.name].format}"
        for tensor in tensors
        if wanted[tensor.name].format.is_quantised and wanted[tensor.name].format != tensor.format
    ]
    if other:
        raise WeightsError(
            f"{file.path}: these tensors have another format than the artifact's: {_listed(other)}; quantised "
            f"weights are read in the very format that the spec says: {compile_command(file)}"
        )


def _check_coverage(file: WeightFile, tensors: Iterable[TensorRows], ignored: Sequence[Pattern[str]]) -> None:
    """Checks that every row is used of a tensor that several weights share, unless the family ignores the others."""
    rows: Counter[str] = Counter()
    total: dict[str, int] = {}
    for tensor in tensors:
        if tensor.recipe.rows is None:
            continue
        # Of a transposed tensor, rows of the file are columns of the model's.
        width = tensor.turned_width or tensor.file_columns
        for planes in tensor.pieces:
            in_file = tensor.num_rows * tensor.columns // width if tensor.turned_width else tensor.num_rows
            if any(pattern.fullmatch(planes[0].name) for pattern in ignored):
                continue
            rows[planes[0].name] += in_file // len(tensor.pieces)
            # Of blocks, which are transposed once they are decoded, the planes are still as in the file.
            is_turned = tensor.turned_width is not None and planes[0].shape[-1] != width
            found = planes[0].num_elements // width if is_turned else rows_in_file(tensor.format, planes, width)
            total[planes[0].name] = found or 0
    wrong = [f"{quoted(name)} has {total[name]} rows, the model {count}" for name, count in rows.items()]
    wrong = [text for text, (name, count) in zip(wrong, rows.items(), strict=True) if total[name] != count]
    if wrong:
        raise WeightsError(
            f"{file.path}: these tensors have the wrong shape: {_listed(wrong)}; {compile_command(file)}"
        )


def _extra(file: WeightFile, used: set[str], ignored: Sequence[Pattern[str]]) -> list[str]:
    return [
        quoted(name)
        for name in file.tensors
        if name not in used and name not in file.metadata and not any(pattern.fullmatch(name) for pattern in ignored)
    ]


def _listed(items: Iterable[str]) -> str:
    every = list(items)
    more = f" and {len(every) - _MAX_LISTED} more" if len(every) > _MAX_LISTED else ""
    return ", ".join(every[:_MAX_LISTED]) + more
