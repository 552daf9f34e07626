"""Artifacts of models that differ in their name alone."""

import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.targets.early import Early
from mlxr.compiler.targets.provenance import renamed
from mlxr_tests.specs import small_spec


@pytest.mark.parametrize("changes", [{}, pytest.param({"parallel": {"tensor": 2}}, marks=pytest.mark.long)])
def test_an_artifact_of_another_name_is_what_its_spec_compiles_to(changes: dict[str, object]) -> None:
    old = small_spec(**changes)  # type: ignore[arg-type]
    new = old.model_copy(update={"name": 'another "one" (1)'})
    expected = dict(compile_spec(new).artifact.files)
    assert renamed(compile_spec(old).artifact.files, old, new) == expected
    assert sum('another "one" (1)' in text for text in expected.values()) > 5, "sources state it"


def test_a_target_that_is_wanted_early_changes_nothing() -> None:
    taken: list[dict[str, str]] = []
    early = Early("cpu", lambda program, sources: taken.append({file: sources[file] for file in program.files}))
    artifact, usual = compile_spec(small_spec(), early=early).artifact, compile_spec(small_spec()).artifact
    assert list(artifact.files.items()) == list(usual.files.items())
    assert taken == [{"cpu/model.c": usual.files["cpu/model.c"]}]
