"""Runs the `mlxr` command: python -m mlxr."""

import sys

from mlxr.cli import main

sys.exit(main())
