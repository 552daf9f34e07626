"""docs/commands.md is the commands' own help."""

import sys

import pytest

from make_commands import PAGE, commands_page


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes options otherwise from 3.13 on")
def test_help_is_the_commands_own() -> None:
    assert PAGE.read_text(encoding="utf-8") == commands_page(), "run python docs/make_commands.py"
