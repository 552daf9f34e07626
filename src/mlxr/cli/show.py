"""`mlxr show`: shows a registered model."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mlxr.cli.shown_model import as_json, files_as_json, moment
from mlxr.cli.table import print_table
from mlxr.compiler.errors import MlxrError, RegistryError
from mlxr.compiler.text.byte_sizes import size
from mlxr.model_facts import ModelFacts, model_facts
from mlxr.progress_line import ProgressLine
from mlxr.registry.file_status import status_of
from mlxr.registry.names import close_names
from mlxr.registry.records import ArtifactRecord
from mlxr.registry.registry import Registry

_UNKNOWN = "not known: its files cannot be read"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "show",
        help="show a registered model",
        description="Show what the registry says of a model: its files with sizes and hashes, its options, its "
        "context, how its tokens are chosen, and what it was compiled to. Exits with 1 if a file changed or is "
        "missing.",
    )
    parser.add_argument("name", metavar="NAME", help="a name that mlxr list shows")
    parser.add_argument(
        "--verify", action="store_true", help="read all files and compare their hashes, not only sizes and times"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    registry = Registry()
    model = registry.get(args.name)
    if model is None:
        close = close_names(args.name, registry.names())
        hint = f"; did you mean {' or '.join(close)}?" if close else "; mlxr list shows the names"
        raise RegistryError(f"no model is registered as {args.name!r}{hint}")
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
        (
            "context",
            _UNKNOWN if facts is None else f"up to {facts.context:,} tokens, as far as memory has room for them",
        ),
        ("sampling", _UNKNOWN if sampling is None else str(sampling)),
        *(("note", note) for note in (() if sampling is None else sampling.notes)),
        ("spec", model.spec_hash),
        *(("compiled", _place(artifact)) for artifact in artifacts),
    ]
    for key, value in lines:
        print(f"{key:<10} {value}")
    print()
    files = [(str(file.path), size(file.size_bytes), file.sha256) for file in model.files]
    print_table([("file", "size", "SHA-256"), *files])
    return code


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
