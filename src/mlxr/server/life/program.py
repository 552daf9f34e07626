"""How a server is started in a process of its own, and how long it may take to end."""

import sys

PROGRAM = (sys.executable, "-P", "-m", "mlxr.cli", "serve")
"""`mlxr serve`. -P: else Python would run modules of the current folder, which may be a download."""
SAVE_SECONDS = 60.0
"""How long a server may take to save what its models have cached, after the time of grace."""
