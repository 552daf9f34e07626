"""The table of docs/models.md is what benchmarks/fit_table.py writes."""

import importlib.util

import pytest

from mlxr_tests.storyteller import ROOT


@pytest.mark.long
def test_the_table_is_the_commands() -> None:
    module = importlib.util.spec_from_file_location("fit_table", ROOT / "benchmarks" / "fit_table.py")
    assert module is not None and module.loader is not None
    table = importlib.util.module_from_spec(module)
    module.loader.exec_module(table)
    assert len(table.MODELS) == 12 and len(table.machines()) == 3
    assert table.PAGE.read_text(encoding="utf-8") == table.fit_page()
