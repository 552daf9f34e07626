"""What is taken for a model on the hub."""

import pytest

from mlxr.hub.reference import HubReference, hub_reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", HubReference("org/repo")),
        ("org/Qwen3-0.6B-GGUF:Q4_K_M", HubReference("org/Qwen3-0.6B-GGUF", "Q4_K_M")),
        ("org/repo:sub/model.gguf", HubReference("org/repo", "sub/model.gguf")),
        ("repo", None),
        ("a/b/c", None),
        ("./repo", None),
        ("/a/b", None),
        ("../b", None),
        ("models/x.gguf", None),
        ("models/x.yaml", None),
        ("org/repo:", None),
        ("org/repo:a b", None),
        ("org/rep\u00f6", None),
        ("https://huggingface.co/org/repo", None),
    ],
)
def test_references(text: str, expected: HubReference | None) -> None:
    assert hub_reference(text) == expected
    assert expected is None or str(expected) == text
