"""`mlxr show`: shows a model, registered or not."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlxr.cli.argparse_types import model_name
from mlxr.cli.shown_model import as_json, files_as_json, moment
from mlxr.cli.terminal import ProgressLine, print_table
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.text import printable, size
from mlxr.loading.model_facts import ModelFacts, model_facts
from mlxr.registry import RegistryError
from mlxr.registry.file_status import status_of
from mlxr.registry.records import ArtifactRecord, close_names
from mlxr.registry.registry import Registry
from mlxr.runtime.tokenizer.template_files import DEFAULT, NamedTemplates

_UNKNOWN = "not known: its files cannot be read"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "show",
        help="show what a model is",
        description="Show what a model's files say of it: its size, its context, how its tokens are chosen, and how it "
        "writes calls of tools and thoughts, which is learned from its chat template. Of a "
        "registered model, show its files with sizes and hashes, its options, and what it was compiled to, too; the "
        "exit code is 1 if a file changed or is missing.",
    )
    parser.add_argument(
        "name",
        type=model_name,
        metavar="MODEL",
        help="a name that mlxr list or mlxr models shows, a .gguf file, or a Hugging Face folder",
    )
    parser.add_argument(
        "--weights", metavar="W", help="of a spec or an artifact, which have none: a weight file, or a folder of them"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read all files and compare their hashes, not only sizes and times"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    registry = Registry()
    model = registry.get(args.name)
    if model is None and (args.name in bundled_specs() or Path(args.name).exists()):
        _show_files(args.name, args.weights, as_text=not args.json)
        return 0
    if model is None:
        close = close_names(args.name, registry.names())
        hint = f"; did you mean {' or '.join(close)}?" if close else "; mlxr list shows the names"
        raise RegistryError(f"no model is registered as {args.name!r}{hint}")
    if args.weights is not None:
        raise RegistryError(f"{args.name} is registered with its weights: leave --weights out")
    with ProgressLine() as line:

        def tell(path: Path, done: int, total: int) -> None:
            line.show(f"reading {path.name} {100 * done // max(1, total)} %")

        status = status_of(model.files, verify=args.verify, progress=tell)
    artifacts = registry.artifacts(model.spec_hash)
    facts = _facts(model.name)
    sampling = None if facts is None else facts.sampling
    code = 0 if status.state == "ok" else 1
    shown = as_json(model, status)
    if args.json:
        rows = [asdict(artifact) | {"folder": str(artifact.folder)} for artifact in artifacts]
        shown["sampling"] = None if sampling is None else dict(sampling.options)
        shown |= {"sampling_source": "" if sampling is None else sampling.source}
        shown["context"] = None if facts is None else facts.context
        shown["answers"] = _form(facts, model.options.template)
        shown |= {"verified": args.verify, "files": files_as_json(model), "artifacts": rows}
        print(json.dumps(shown, indent=1))
        return code
    how = "by their hashes" if args.verify else "by sizes and times; --verify compares hashes"
    options = {key: value for key, value in shown["options"].items() if key != "template"}
    lines = [
        ("name", model.name),
        ("source", f"{model.source} ({model.kind})"),
        ("status", f"{status} ({how})"),
        ("added", moment(model.added)),
        ("last used", moment(model.last_used)),
        ("options", ", ".join(f"{key} {value}" for key, value in options.items()) or "none"),
        ("template", "its own" if model.options.template is None else "given with mlxr add"),
        *_form_lines(facts, model.options.template),
        ("context", _UNKNOWN if facts is None else _context(facts)),
        ("sampling", _UNKNOWN if sampling is None else str(sampling)),
        *(("note", note) for note in (() if sampling is None else sampling.notes)),
        ("spec", model.spec_hash),
        *(("compiled", _place(artifact)) for artifact in artifacts),
    ]
    _print(lines)
    print()
    files = [(str(file.path), size(file.size_bytes), file.sha256) for file in model.files]
    print_table([("file", "size", "SHA-256"), *files])
    return code


def _show_files(name: str, weights: str | None, *, as_text: bool) -> None:
    """Shows a model that is not registered."""
    facts = model_facts(name, weights=weights)
    templates = [] if facts.templates is None else list(facts.templates.by_name)
    if not as_text:
        shown = {key: value for key, value in vars(facts).items() if key not in ("templates", "sampling")}
        sampling = {"sampling": dict(facts.sampling.options), "sampling_source": facts.sampling.source}
        print(json.dumps(shown | sampling | {"templates": templates, "answers": _form(facts)}, indent=1))
        return
    lines = [
        ("source", name),
        ("family", f"{facts.family}, {facts.num_layers} layers, a vocabulary of {facts.vocab_size:,} tokens"),
        ("weights", f"{facts.num_parameters:,} numbers, {facts.quantization}, {size(facts.size_bytes)}"),
        ("template", ", ".join(templates) or "none: it continues texts"),
        *_form_lines(facts),
        ("context", _context(facts)),
        ("sampling", str(facts.sampling)),
        *(("note", note) for note in facts.sampling.notes),
    ]
    _print(lines)


def _print(lines: list[tuple[str, str]]) -> None:
    for key, value in lines:
        print(f"{key:<10} {printable(value)}")


def _context(facts: ModelFacts) -> str:
    return f"up to {facts.context:,} tokens, as far as memory has room for them"


def _form_lines(facts: ModelFacts | None, template: str | None = None) -> list[tuple[str, str]]:
    """How the model writes answers."""
    from mlxr.server.chat.shown_form import form_lines  # noqa: PLC0415 (slow to import: not for other commands)

    templates = _templates(facts, template)
    return [] if templates is None else form_lines(templates)


def _form(facts: ModelFacts | None, template: str | None = None) -> dict[str, Any] | None:
    """The same for programs."""
    from mlxr.server.chat.shown_form import form_as_json  # noqa: PLC0415 (as above)

    templates = _templates(facts, template)
    return None if templates is None else form_as_json(templates)


def _templates(facts: ModelFacts | None, template: str | None) -> NamedTemplates | None:
    """A model's templates: the one that was given with mlxr add, else its own."""
    if template is not None:
        return NamedTemplates({DEFAULT: template}, "")
    return None if facts is None else facts.templates


def _facts(name: str) -> ModelFacts | None:
    """What the model's own files say of it; None if they cannot be read."""
    try:
        return model_facts(name)
    except MlxrError:
        return None


def _place(artifact: ArtifactRecord) -> str:
    gone = "" if artifact.folder.is_dir() else "; not in the cache any more: the next run compiles it again"
    use = f"for up to {artifact.sequences} sequences, " if artifact.sequences > 1 else ""
    return f"{artifact.folder} ({use}{artifact.chip or 'for no chip in particular'}{gone})"
