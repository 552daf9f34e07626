"""`mlxr serve` over the engine alone, and beside other servers: over HTTP, as its users ask it.

    python benchmarks/serve.py [--llama-cpp DIR] [--models storyteller,100m] [--only over_engine,servers,mlx_lm]

Each server is started by its own command, in a process of its own, and asked by a client that takes next to no time;
they take turns, and the figures are medians. The peers are llama.cpp's `llama-server` (DIR is the folder of a build's
programs, see engine.py) and `mlx_lm.server`, for the bundled model. What each part measures is said in
benchmarks/serving, in the module of its name.

Prints a table and writes benchmarks/serve.json; the exit code is 1 if a row is not what it must be.
"""

import sys

from serving import command, over_engine, servers

_PARTS: command.Parts = {
    "over_engine": over_engine.measure,
    "servers": servers.measure,
    "mlx_lm": servers.beside_mlx_lm,
}


def main() -> int:
    """Measures, prints, writes."""
    command.exit_when_ended()
    args = command.option_parser("Measure the server on host cpu.", _PARTS).parse_args()
    return command.run(args, _PARTS, "serve")


if __name__ == "__main__":
    sys.exit(main())
