"""Which files of a repository are fetched, and which never."""

import pytest

from mlxr.hub import HubError
from mlxr.hub.choose_files import HubFile, choose_files, weights_of_index
from mlxr.hub.reference import hub_reference


def files(names: str) -> list[HubFile]:
    return [HubFile(name, 1 << (10 + index), "0" * 64) for index, name in enumerate(names.split())]


def chosen(reference: str, names: str) -> tuple[str, str]:
    found = hub_reference(reference)
    assert found is not None
    choice = choose_files(found, files(names), lambda models: models[min(models)])
    return " ".join(file.path for file in choice.files), choice.entry


CODE = "modeling_x.py pytorch_model.bin tokenizer.py README.md .gitattributes "


@pytest.mark.parametrize(
    ("reference", "names", "expected", "entry"),
    [
        ("o/r", CODE + "config.json model.safetensors a.gguf", "config.json model.safetensors", ""),
        (
            "o/r",
            "tokenizer.json config.json consolidated.safetensors model.safetensors.index.json chat_template.jinja "
            "additional_chat_templates/tool_use.jinja",
            "config.json tokenizer.json chat_template.jinja additional_chat_templates/tool_use.jinja "
            "model.safetensors.index.json",
            "",
        ),
        ("o/r", "config.json weights.safetensors", "config.json weights.safetensors", ""),
        ("o/r:safetensors", "config.json model.safetensors a.gguf", "config.json model.safetensors", ""),
        (
            "o/r",
            "config.json merges.txt model.safetensors spiece.model vocab.json vocab.txt",
            "config.json spiece.model vocab.json merges.txt vocab.txt model.safetensors",
            "",
        ),
        (
            "o/r",
            "config.json merges.txt model.safetensors tokenizer.json vocab.json",
            "config.json tokenizer.json model.safetensors",
            "",
        ),
        ("o/r", CODE + "a-Q8_0.gguf mmproj-f16.gguf imatrix.gguf", "a-Q8_0.gguf", "a-Q8_0.gguf"),
        ("o/r", "b-Q8_0.gguf a-Q8_0.gguf a.mmproj-Q8_0.gguf mtp-a.gguf", "a-Q8_0.gguf", "a-Q8_0.gguf"),
        ("o/r:Q4_K_M", "a-Q4_K_M.gguf a-Q4_K_S.gguf", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"),
        ("o/r:q4_k_m", "a-Q4_K_M.gguf a-Q4_K_S.gguf", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"),
        ("o/r:Q4_0", "a-Q4_0.gguf a-Q4_0_4_4.gguf", "a-Q4_0.gguf", "a-Q4_0.gguf"),
        ("o/r:a-Q4_0.gguf", "a-Q4_0.gguf b/a-Q4_0.gguf", "a-Q4_0.gguf", "a-Q4_0.gguf"),
        (
            "o/r:Q8",
            "Q8/m-Q8_0-00001-of-00002.gguf Q8/m-Q8_0-00002-of-00002.gguf m-Q4.gguf",
            "Q8/m-Q8_0-00001-of-00002.gguf Q8/m-Q8_0-00002-of-00002.gguf",
            "Q8/m-Q8_0-00001-of-00002.gguf",
        ),
        ("o/r", "../a.gguf /b.gguf c.gguf", "c.gguf", "c.gguf"),
    ],
)
def test_what_is_chosen(reference: str, names: str, expected: str, entry: str) -> None:
    assert chosen(reference, names) == (expected, entry)


@pytest.mark.parametrize(
    ("reference", "names", "message"),
    [
        ("o/r:Q4", "a-Q4_0.gguf a-Q4_1.gguf", "2 GGUF models match: name one of them further"),
        ("o/r:Q5", "a-Q4_0.gguf a-Q8_0.gguf", "no GGUF file of o/r has 'Q5' in its name\n .*a-Q4_0"),
        ("o/r:Q5", "config.json model.safetensors", "o/r has no GGUF files to choose from"),
        ("o/r:model.safetensors", "config.json model.safetensors", "goes with its whole folder; name that: o/r"),
        ("o/r:modeling_x.py", CODE, "refused: this is code"),
        ("o/r:pytorch_model.bin", CODE, r"refused: a \.bin file is a pickle"),
        ("o/r", CODE + "config.json", r"its weights are pickles \(pytorch_model.bin\)"),
        ("o/r", "model.safetensors", "but no config.json"),
        ("o/r", "config.json a.safetensors b.safetensors", "has 2 safetensors files and no model.safetensors.index"),
        ("o/r", "README.md", "no model here that MLXR reads"),
    ],
)
def test_what_is_refused(reference: str, names: str, message: str) -> None:
    with pytest.raises(HubError, match=message):
        chosen(reference, names)


@pytest.mark.parametrize("name", ["x.bin", "../x.safetensors", "sub/a.safetensors", "absent.safetensors"])
def test_an_index_names_only_weight_files_that_are_there(name: str) -> None:
    reference = hub_reference("o/r")
    assert reference is not None
    there = files("a.safetensors b.safetensors sub/a.safetensors x.bin")
    table = {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    assert [file.path for file in weights_of_index(reference, {"weight_map": table}, there)] == [
        "a.safetensors",
        "b.safetensors",
    ]
    for index in ({"weight_map": table | {"w": name}}, {"weight_map": {}}, [], {"weight_map": {"w": 1}}):
        with pytest.raises(HubError, match=r"index\.json"):
            weights_of_index(reference, index, there)
