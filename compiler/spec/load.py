"""Spec files in and out: YAML to ModelSpec with errors that point into the file, and back."""

import contextlib
import re
from pathlib import Path

import yaml

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.document import MAX_BYTES, Document, interpret, read_document
from mlxr.compiler.spec.explain import nearest, validated
from mlxr.compiler.spec.family import known_families
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.problems import Problem

_WRITTEN_OTHERWISE = re.compile(r'\\|"":|.{80}')
"""What PyYAML's two emitters write differently: escapes, long lines, keys without a letter."""


def load_spec(path: str | Path) -> ModelSpec:
    """Reads a spec file.

    Raises:
        SpecError: the file cannot be read or holds no valid spec.
    """
    return parse_spec(read_text(path), str(path))


def parse_spec(text: str, source: str = "<string>", *, is_dumped: bool = False) -> ModelSpec:
    """Reads a spec from YAML text.

    Args:
        text: one YAML document.
        source: what error messages call the text.
        is_dumped: whether `dump_spec` wrote it, so that the faster parser reads it first.

    Raises:
        SpecError: it holds no valid spec; the message shows every problem with its place.
    """
    if is_dumped:
        with contextlib.suppress(SpecError):  # what somebody has changed is read again, for the messages
            return _checked(read_document(text, source, is_ours=True))
    return _checked(read_document(text, source))


def _checked(document: Document) -> ModelSpec:
    spec = validated(ModelSpec, document)
    family, families = spec.model.tensor_names, known_families()
    if family not in families:
        like = nearest(family, families)
        what = f'model.tensor_names is "{family}"; expected one of {", ".join(families)}'
        mark = document.at_value(("model", "tensor_names"))
        raise document.error([Problem(mark, what, f'did you mean "{like}"?' if like else "")])
    return spec


def dump_spec(spec: ModelSpec) -> str:
    """The spec as YAML with every value resolved. It reads back equal, and equal specs give equal text.

    What there was not in older artifacts is left out where it says nothing: an output of logits, a split, adapters, a
    head or a norm of embeddings that there is not, biases by distance, factors of weights, and blocks of models without
    recurrent ones.
    """
    data = spec.model_dump(mode="json")
    sections = (data["model"], *data["model"]["layer_types"].values())
    attentions = [section["attention"] for section in sections if section["attention"] is not None]
    if all(attention["alibi"] is None for attention in attentions):
        for attention in attentions:
            del attention["alibi"]
    if not spec.model.embedding_norm:
        del data["model"]["embedding_norm"]
    if not any(spec.model.recurrents) and all(layer.blocks == ("attention", "mlp") for layer in spec.model.layers):
        for section in sections:
            del section["recurrent"], section["blocks"]
    if not spec.model.factors:
        del data["model"]["factors"]
    for head in ("mtp", "eagle"):
        if getattr(spec.model, head) is None:
            del data["model"][head]
    if spec.parallel is None:
        del data["parallel"]
    if spec.adapters is None:
        del data["adapters"]
    if spec.output == "logits":
        del data["output"]
    text: str = yaml.dump(data, Dumper=_QuickDumper, sort_keys=False, allow_unicode=True)
    if text.isascii() and not _WRITTEN_OTHERWISE.search(text):
        return text
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_text(path: str | Path) -> str:
    """The text of a small UTF-8 file.

    Raises:
        SpecError: the file is missing, not readable, too large or not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SpecError(f"{path}: is a folder; expected a spec file") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise SpecError(f"{path}:1:1: larger than {MAX_BYTES} bytes; a spec is a page of text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8").split("\n")
        raise SpecError(
            f"{path}:{len(before)}:{len(before[-1]) + 1}: byte 0x{data[error.start]:02x} is not UTF-8\n"
            "  fix: save the file as UTF-8"
        ) from None


class _Dumper(yaml.SafeDumper):
    """Quotes text that `interpret` would read as something else."""


class _QuickDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes ASCII as `_Dumper` does, in a third of the time where PyYAML's emitter in C is there."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if interpret(text) == text else '"')


for _dumper in (_Dumper, _QuickDumper):
    _dumper.add_representer(str, _represent_text)
