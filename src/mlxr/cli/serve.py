"""`mlxr serve`: models for clients of OpenAI, Anthropic and Ollama."""

import argparse
import importlib.util
from dataclasses import replace
from pathlib import Path

from mlxr.cli.model_arguments import add_context_argument, add_host_arguments, changes_of
from mlxr.cli.pull_progress import pull_absent
from mlxr.cli.speculation_options import add_speculation_arguments
from mlxr.cli.tier_options import add_tier_arguments, size_argument, tier_sizes
from mlxr.compiler.errors import RequestError
from mlxr.model_source import MODEL_HELP

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


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
        type=_seconds,
        default=300.0,
        metavar="TIME",
        help="unload a model that nobody asked for so long, such as 90s, 10m, 2h or forever (default: 5m)",
    )
    parser.add_argument(
        "--max-sequences", type=int, default=16, metavar="N", help="answers that a step computes (default: 16)"
    )
    parser.add_argument(
        "--max-waiting", type=int, default=1024, metavar="N", help="requests of a model that may wait (default: 1024)"
    )
    parser.add_argument("--template", type=Path, metavar="FILE", help="a Jinja2 chat template for all these models")
    keys = parser.add_argument_group("who may ask")
    keys.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="a file of keys, one a line; one is then needed"
    )
    keys.add_argument("--allow-open", action="store_true", help="listen beyond this machine without a key")
    keys.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="let this site's pages use the server"
    )
    keys.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name by which clients reach this server"
    )
    add_host_arguments(parser)
    add_context_argument(parser)
    add_speculation_arguments(parser)
    add_tier_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    for module in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise RequestError(f"{module} is not installed, which the server needs: pip install 'mlxr[serve]'")
    from mlxr.server.pool.engine_source import EngineSource  # noqa: PLC0415 (needs the packages above)
    from mlxr.server.pool.model_pool import ModelPool  # noqa: PLC0415
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
    )
    named = _all_names(args)
    for model in named.values():
        pull_absent(model)
    changes, tiers = changes_of(args), tier_sizes(args)
    options = EngineSource(
        "",
        "",
        max_sequences=args.max_sequences,
        max_waiting=args.max_waiting,
        host=args.host,
        threads=args.threads,
        changes=changes,
        tiers=tiers,
        draft=args.draft,
        prompt_lookup=args.prompt_lookup,
        template=args.template,
    )
    sources = [replace(options, name=name, model=model) for name, model in named.items()]
    catalog = None if named else RegistryCatalog(options)
    if catalog is not None and not catalog.names():
        raise RequestError(
            "no model was given, and none is registered; for example: mlxr serve storyteller, or mlxr add ./model.gguf"
        )
    return run_server(
        lambda: ModelPool(
            sources,
            memory_bytes=args.memory,
            keep_alive=args.keep_alive,
            load_seconds=settings.load_seconds,
            catalog=catalog,
        ),
        settings,
    )


def _all_names(args: argparse.Namespace) -> dict[str, str]:
    """Each served model's name, and what MODEL it is."""
    named: dict[str, str] = {}
    for name, model in [*((_name_of(model), model) for model in args.models), *args.named]:
        if name in named:
            raise RequestError(f"two models are named {name!r}: give one another name, with --model NAME=MODEL")
        named[name] = model
    return named


def _name_of(model: str) -> str:
    path = Path(model)
    if not path.exists():
        return model  # a bundled or registered name, which may have slashes
    return path.stem if path.suffix in {".gguf", ".yaml"} else path.name or model


def _named(text: str) -> tuple[str, str]:
    name, separator, model = text.partition("=")
    if not name or not separator or not model:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MODEL")
    return name, model


def _seconds(text: str) -> float:
    if text == "forever":
        return float("inf")
    unit = _UNITS.get(text[-1:])
    number = text[:-1] if unit else text
    try:
        seconds = float(number) * (unit or 1.0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; expected one such as 90s, 10m, 2h, or forever")
    return seconds


def _keys(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    try:
        keys = tuple(key for line in file.read_text(encoding="utf-8").splitlines() if (key := line.strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file}: the keys cannot be read: {error}") from error
    if not keys:
        raise RequestError(f"{file} has no key: write one a line")
    return keys
