"""What is taken for a model on the hub."""

import pytest

from mlxr.hub.reference import HubReference, hub_reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", HubReference("org/repo")),
        ("org/Qwen3-0.6B-GGUF:Q4_K_M", HubReference("org/Qwen3-0.6B-GGUF", "Q4_K_M")),
        ("org/repo:sub/model.gguf", HubReference("org/repo", "sub/model.gguf")),
        ("org/repo@v1.0", HubReference("org/repo", revision="v1.0")),
        ("org/repo@refs/pr/3:Q8_0", HubReference("org/repo", "Q8_0", "refs/pr/3")),
        ("org/repo@", None),
        ("org/repo@-x", None),
        ("models/a@b.gguf", None),
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
