"""What is taken for a model on the hub."""

import pytest

from mlxr.hub.reference import HubReference, hub_reference, without_hub


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf.co/org/repo", "org/repo"),
        ("hf.co/org/repo:Q4_K_M", "org/repo:Q4_K_M"),
        ("https://hf.co/org/repo@v1", "org/repo@v1"),
        ("https://huggingface.co/org/repo", "org/repo"),
        ("https://huggingface.co/org/repo/", "org/repo"),
        ("https://huggingface.co/org/repo?library=x#files", "org/repo"),
        ("https://huggingface.co/org/repo/tree/main", "org/repo"),
        ("https://huggingface.co/org/repo/tree/refs%2Fpr%2F3", "org/repo@refs/pr/3"),
        ("https://huggingface.co/org/repo/blob/main/Q4/x.gguf", "org/repo:Q4/x.gguf"),
        ("https://huggingface.co/org/repo/resolve/v1/x.gguf?download=true", "org/repo@v1:x.gguf"),
        ("https://huggingface.co/org/repo/blob/main/config.json", "org/repo"),
        ("https://huggingface.co/org/repo/discussions/3", "org/repo"),
        ("https://huggingface.co/org", "https://huggingface.co/org"),
        ("https://example.com/org/repo", "https://example.com/org/repo"),
        ("org/repo", "org/repo"),
        ("./hf.co/org/repo", "./hf.co/org/repo"),
    ],
)
def test_addresses_of_the_hub(text: str, expected: str) -> None:
    assert without_hub(text) == expected
