"""Options of `mlxr serve` about how it runs, ends and tells what it does."""

import argparse
from pathlib import Path

from mlxr.cli.tier_options import size_argument

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 100 * 365 * 86400.0
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them, in groups of their own."""
    life = parser.add_argument_group("how it runs and ends")
    life.add_argument("--detach", action="store_true", help="go on in the background; see mlxr ps and mlxr stop")
    life.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="how long answers may go on after Ctrl-C or SIGTERM (default: 30s); a second signal ends at once",
    )
    life.add_argument(
        "--max-connections", type=positive, default=4096, metavar="N", help="connections at a time (default: 4096)"
    )
    life.add_argument(
        "--max-body",
        type=size_argument,
        default=8 << 20,
        metavar="SIZE",
        help="most bytes of a request's body, such as 64MiB for very long prompts (default: 8MiB)",
    )
    life.add_argument(
        "--header-time",
        type=seconds,
        default=10.0,
        metavar="TIME",
        help="how long a client may take to send the head of a request (default: 10s)",
    )
    life.add_argument(
        "--body-time",
        type=seconds,
        default=30.0,
        metavar="TIME",
        help="how long a client may take to send a body; a long one gets a second more for each 16 KiB (default: 30s)",
    )
    kept = parser.add_argument_group("responses of /v1/responses that others may go on from (previous_response_id)")
    kept.add_argument(
        "--keep-responses",
        type=size_argument,
        default=64 << 20,
        metavar="SIZE",
        help="keep so much of them, those used last; 0: none (default: 64MiB)",
    )
    kept.add_argument(
        "--responses-file",
        type=Path,
        metavar="FILE",
        help="keep them in this SQLite file, with their texts (default: in memory, until the server ends)",
    )
    log = parser.add_argument_group("log: a line of JSON for each request, without its text")
    log.add_argument("--log-file", type=Path, metavar="FILE", help="add to this file (default: standard error)")
    log.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        metavar="LEVEL",
        help="debug (also probes), info (all requests), warning (refused ones), error (default: info)",
    )
    log.add_argument("--log-text", action="store_true", help="also log what users write and get")
    log.add_argument(
        "--otlp-traces-endpoint",
        default="",
        metavar="URL",
        help="also send a span of each request to this OpenTelemetry collector, such as "
        "http://127.0.0.1:4318/v1/traces (needs mlxr[otel])",
    )


def seconds(text: str) -> float:
    """A time, such as 90s, 10m or 2h; `forever` is infinity."""
    if text == "forever":
        return float("inf")
    unit = UNITS.get(text[-1:])
    number = text[:-1] if unit else text
    try:
        time = float(number) * (unit or 1.0)
    except ValueError:
        time = -1.0
    if not 0 <= time < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; expected one such as 90s, 10m, 2h, or forever")
    return time if time <= _LONGEST else float("inf")


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)
