"""Runs the `mlxr` command: python -m mlxr.cli."""

import sys

from mlxr.cli import main

sys.exit(main())
