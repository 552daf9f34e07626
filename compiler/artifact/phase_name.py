"""The two phases of a program."""

from typing import Literal

PhaseName = Literal["decode", "prefill"]
"""`decode`: one new token for each sequence; `prefill`: prompts, chunks of prompts, and batches that mix both."""
PHASES: tuple[PhaseName, ...] = ("decode", "prefill")
