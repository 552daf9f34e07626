"""Options and fixtures of all tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --update-golden."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))
