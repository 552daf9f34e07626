"""How a server is started in a process of its own."""

import sys

PROGRAM = (sys.executable, "-P", "-m", "mlxr.cli", "serve")
"""`mlxr serve`. -P: else Python would run modules of the current folder, which may be a download."""
