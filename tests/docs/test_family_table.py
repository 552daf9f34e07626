"""The table of docs/families.md is that of the registry."""

from make_families import PAGE, families_page


def test_table_has_the_families_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == families_page(), "run python docs/make_families.py"
