"""Lets `python -m mlxr.compiler.cli` be the command."""

import sys

from mlxr.compiler.cli import main

sys.exit(main())
