"""The instruction sets that host cpu can be held to, as parameters of tests."""

import pytest

from mlxr.runtime.hosts.cpu.instruction_sets import instruction_sets


def held_to() -> list[tuple[str, list[pytest.MarkDecorator]]]:
    """Each set's name, and the marks of a test of it: it is skipped where this CPU lacks the set."""
    return [(found.name, _marks(found.name, found.missing)) for found in instruction_sets()]


def _marks(name: str, missing: list[str]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skip(reason=f"{name} needs {', '.join(missing)}")] if missing else []
