"""The table of docs/families.md is that of the registry, and so is the count in the changelog."""

from make_families import PAGE, families_page
from mlxr.compiler.spec.family import known_families, load_family


def test_table_has_the_families_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == families_page(), "run python docs/make_families.py"


def test_the_changelog_counts_what_config_json_may_say() -> None:
    configs = [load_family(name).config for name in known_families()]
    count = len({name for config in configs for name in (*config.names, *config.wrappers)})
    changes = (PAGE.parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"* **Models.** {count} model types of `config.json`" in changes
