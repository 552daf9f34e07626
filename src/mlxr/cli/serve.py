"""`mlxr serve`: models for clients of OpenAI, Anthropic and Ollama."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.cli.adapter_options import adapters_of, add_adapter_arguments
from mlxr.cli.card_note import tell_of_card
from mlxr.cli.model_arguments import (
    add_context_argument,
    add_experts_argument,
    add_host_arguments,
    add_mmap_argument,
    changes_of,
)
from mlxr.cli.pull_progress import pull_absent
from mlxr.cli.rank_options import add_rank_arguments, check_rank_arguments, refuse_split, run_again
from mlxr.cli.reasoning_options import add_reasoning_arguments, reasoning_of
from mlxr.cli.server_options import add_server_arguments, seconds
from mlxr.cli.speculation_options import add_speculation_arguments
from mlxr.cli.split_note import tell_beside
from mlxr.cli.tier_options import add_tier_arguments, size_argument, tier_sizes
from mlxr.compiler.errors import RequestError
from mlxr.loading.adapter_paths import NO_ADAPTERS
from mlxr.loading.find_model import MODEL_HELP
from mlxr.loading.load import load_with
from mlxr.loading.options import USUAL_SEQUENCES, LoadOptions

if TYPE_CHECKING:
    from mlxr.loading.find_model import FoundModel


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "serve",
        help="serve models to clients of OpenAI, Anthropic and Ollama",
        description="Serve models over HTTP, on this machine only unless told otherwise. Each is loaded when it is "
        "first asked for.",
    )
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help=f"served by its own name: {MODEL_HELP}; without any, all that are registered",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        type=_named,
        metavar="NAME=MODEL",
        dest="named",
        help="a model under a name that you choose; may be given several times",
    )
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="the port (default: 8080; 0: any free one)")
    parser.add_argument(
        "--memory", type=size_argument, metavar="SIZE", help="most memory of all loaded models (default: what is free)"
    )
    parser.add_argument(
        "--keep-alive",
        type=seconds,
        default=300.0,
        metavar="TIME",
        help="unload a model that nobody has used for so long, such as 90s, 10m, 2h or forever (default: 5m)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NAME",
        help="never unload this model once it is loaded; may be given several times",
    )
    parser.add_argument(
        "--max-sequences",
        type=int,
        default=USUAL_SEQUENCES,
        metavar="N",
        help=f"answers that a step computes (default: {USUAL_SEQUENCES})",
    )
    parser.add_argument(
        "--max-waiting", type=int, default=1024, metavar="N", help="requests of a model that may wait (default: 1024)"
    )
    parser.add_argument("--template", type=Path, metavar="FILE", help="a Jinja2 chat template for all these models")
    add_reasoning_arguments(parser.add_argument_group("reasoning: what holds for chat requests that say nothing else"))
    keys = parser.add_argument_group("who may ask")
    keys.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="a file of keys, one a line, and # comments; one key is then needed",
    )
    keys.add_argument(
        "--allow-pull",
        action="store_true",
        help="let clients fetch models from the hub onto this machine's disk (/api/pull, and the page)",
    )
    keys.add_argument("--allow-open", action="store_true", help="listen beyond this machine without a key")
    keys.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="let this site's pages use the server"
    )
    keys.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name by which clients reach this server"
    )
    add_adapter_arguments(parser)
    add_rank_arguments(parser)
    add_server_arguments(parser)
    add_host_arguments(parser)
    add_mmap_argument(parser)
    add_experts_argument(parser)
    add_context_argument(parser)
    add_speculation_arguments(parser)
    add_tier_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    check_rank_arguments(args)
    if (code := run_again(args)) is not None:
        return code
    from mlxr.loading.eagle_head import eagle_head  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.loading.find_model import find_model  # noqa: PLC0415
    from mlxr.runtime.parallel.launch import read_launch  # noqa: PLC0415
    from mlxr.server.log_output import LogOutput  # noqa: PLC0415 (slow to import)
    from mlxr.server.pool.model_pool import ModelPool  # noqa: PLC0415
    from mlxr.server.pool.model_source import ModelSource, ReadySource  # noqa: PLC0415
    from mlxr.server.pool.registry_catalog import RegistryCatalog  # noqa: PLC0415
    from mlxr.server.run_server import run_server  # noqa: PLC0415
    from mlxr.server.settings import ServerSettings  # noqa: PLC0415

    settings = ServerSettings(
        args.address,
        args.port,
        _keys(args.api_key_file),
        args.allow_open,
        tuple(args.allow_origin),
        tuple(args.allow_host),
        most_body_bytes=args.max_body,
        most_connections=args.max_connections,
        header_seconds=args.header_time,
        body_seconds=args.body_time,
        grace_seconds=args.grace,
        log_text=args.log_text,
        allow_pull=args.allow_pull,
        allow_adapters=args.allow_adapters,
        traces_endpoint=args.otlp_traces_endpoint,
        responses_bytes=args.keep_responses,
        responses_file=args.responses_file,
    )
    tell_of_card(args.host)
    changes, tiers = changes_of(args), tier_sizes(args)
    named = _all_names(args)
    for model in (*named.values(), *filter(None, [args.draft])):
        pull_absent(model)
        if model == args.draft and eagle_head(LoadOptions(draft=model, changes=changes)) is not None:
            continue
        found = find_model(model, LoadOptions(args.weights, changes=changes))  # a wrong name is told now
        if found.registered is None:  # a registered one was checked by `mlxr add`
            _check_model(found)
        if args.distributed is None or model == args.draft:
            refuse_split(model)
    loading = LoadOptions(
        args.weights,
        host=args.host,
        threads=args.threads,
        changes=changes,
        tiers=tiers,
        draft=args.draft,
        prompt_lookup=args.prompt_lookup,
        mtp=args.mtp,
        control=args.control,
        mmap=args.mmap,
        experts_on_cpu=args.experts_on_cpu,
    )
    options = ModelSource(
        "", "", loading, args.max_sequences, args.max_waiting, template=args.template, reasoning=reasoning_of(args)
    )
    if args.distributed is not None and (launch := read_launch(os.environ)) is not None and launch.rank:
        # It executes what rank 0 describes, until that ends.
        load_with(args.distributed, loading.for_engine(args.max_sequences))
    given = adapters_of(args, list(named))
    own = [
        replace(options, name=name, model=model, options=replace(loading, adapters=given.get(name, NO_ADAPTERS)))
        for name, model in named.items()
    ]
    sources: Sequence[ModelSource] = own
    if args.distributed is not None:
        (source,) = own
        ready = ReadySource.of(source)
        tell_beside(ready.loaded.engine.model, args.link)
        sources = [ready]
    catalog = None if named and not args.allow_pull else RegistryCatalog(options, only=set() if named else None)
    if not named and catalog is not None and not (catalog.versions() or args.allow_pull):
        raise RequestError(
            "no model was given, and none is registered; for example: mlxr serve storyteller, or mlxr add ./model.gguf"
        )
    names = named or ({} if catalog is None else catalog.versions())
    for name in args.pin:
        if name not in names:
            raise RequestError(f"--pin {name}: no model of that name is served; there are {', '.join(names)}")
    if args.detach:
        return _detach(args)
    return run_server(
        lambda: ModelPool(
            sources,
            memory_bytes=args.memory,
            keep_alive=args.keep_alive,
            load_seconds=settings.load_seconds,
            pinned=named if args.distributed else args.pin,
            catalog=catalog,
        ),
        settings,
        LogOutput(args.log_file, args.log_level),
    )


def _check_model(found: "FoundModel") -> None:
    """Refuses, before the server starts, what is not a model, and a model whose tokenizer cannot be used.

    Raises:
        MlxrError: the model cannot be served.
    """
    from mlxr.compiler.artifact import is_artifact, load_artifact  # noqa: PLC0415 (slow to import: not for the help)
    from mlxr.loading.resolve import spec_of  # noqa: PLC0415
    from mlxr.runtime.engine.model_tokenizer import check_tokenizer  # noqa: PLC0415
    from mlxr.runtime.weights.headers_read_once import headers_read_once  # noqa: PLC0415

    path = Path(str(found.model))
    with headers_read_once():
        if found.kind != "artifact":
            spec_of(found)
        elif not is_artifact(path):
            load_artifact(path)  # says what the folder is instead
        if found.kind == "files":
            check_tokenizer(Path(found.options.weights or path), None)


def _detach(args: argparse.Namespace) -> int:
    from mlxr.server.life.detach import detach  # noqa: PLC0415 (not for other uses)
    from mlxr.server.life.state_file import url_for_others  # noqa: PLC0415

    arguments = [word for word in args.argv[args.argv.index("serve") + 1 :] if not _is_detach(word)]
    state, log = detach(arguments, args.log_file)
    others = url_for_others(args.address, state.port)
    at = f"{state.url}, and for other machines at {others}" if others else state.url
    print(f"serving at {at}, process {state.pid}; its log is {log}; mlxr stop {state.port} ends it")
    return 0


def _is_detach(word: str) -> bool:
    """Whether argparse takes a word for --detach: it may be cut short."""
    return word.startswith("--de") and "--detach".startswith(word)


def _all_names(args: argparse.Namespace) -> dict[str, str]:
    """The MODEL that each served name stands for."""
    named: dict[str, str] = {}
    models = args.models if args.distributed is None else [args.distributed]
    for name, model in [*((served_name(model), model) for model in models), *args.named]:
        if name in named:
            raise RequestError(f"two models are named {name!r}: give one another name, with --model NAME=MODEL")
        named[name] = model
    return named


def served_name(model: str) -> str:
    """The name by which `mlxr serve` serves MODEL."""
    path = Path(model)
    if not path.exists():
        return model  # a bundled or registered name, which may have slashes
    return path.stem if path.suffix in {".gguf", ".yaml"} else path.name or model


def _named(text: str) -> tuple[str, str]:
    name, separator, model = text.partition("=")
    if not name or not separator or not model:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=MODEL; a model by its own name needs no --model: mlxr serve {text}"
        )
    return name, model


def _keys(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file}: the keys cannot be read: {error}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise RequestError(f"{file} has no key: write one a line")
    return keys
