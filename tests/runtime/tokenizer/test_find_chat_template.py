"""Where chat templates come from: files beside the weights, GGUF metadata, a file of one's own."""

import json
import shutil
from pathlib import Path

import pytest

from mlxr.compiler.errors import ChatTemplateError, TokenizerError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.find_chat_template import load_chat_template
from mlxr_tests.storyteller import TOKENIZER
from mlxr_tests.vocabularies import metadata_of_pieces, write_gguf

STORYTELLER = load_tokenizer(TOKENIZER)


def found(*places, file=None):
    template = load_chat_template([Path(place) for place in places], STORYTELLER, file)
    return template.text, template.source


def test_files_beside_the_weights_in_their_order(tmp_path):
    def write(name, content):
        (tmp_path / name).write_text(content)
        return str(tmp_path / name)

    with pytest.raises(ChatTemplateError, match=r"comes without a chat template .*Give one with --template FILE"):
        found(tmp_path)
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": "a"}]
    config = write("tokenizer_config.json", json.dumps({"chat_template": several}))
    assert found(tmp_path) == ("a", config)
    write("tokenizer_config.json", json.dumps({"chat_template": "b"}))
    assert found(tmp_path) == found(tmp_path / "model.safetensors") == ("b", config)
    of_json = write("chat_template.json", json.dumps({"chat_template": "c"}))
    assert found(tmp_path) == ("c", of_json)
    of_jinja = write("chat_template.jinja", "d\n")
    assert found(tmp_path) == ("d\n", of_jinja)
    other = write("other.jinja", "e")
    assert found(tmp_path, file=other) == ("e", other)


def named(*places):
    """The template of a conversation without tools, and with them, as it is rendered."""
    with load_chat_template([Path(place) for place in places], STORYTELLER) as template:
        return template.render([]), template.render([], tools=[{"type": "function"}])


def test_a_template_for_tools_is_used_when_there_are_tools(tmp_path):
    several = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": several}))
    assert named(tmp_path) == ("a", "a")
    config.write_text(json.dumps({"chat_template": [*several, {"name": "tool_use", "template": "c"}]}))
    assert named(tmp_path) == ("a", "c")
    config.write_text(json.dumps({"chat_template": {"tool_use": "c"}}))
    assert named(tmp_path) == ("c", "c"), "as llama.cpp has it"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("d")
    config.write_text(json.dumps({"chat_template": "a"}))
    assert named(tmp_path) == ("a", "d")
    (tmp_path / "chat_template.jinja").write_text("e")
    config.write_text(json.dumps({"chat_template": [*several, {"name": "tool_use", "template": "c"}]}))
    assert named(tmp_path) == ("e", "d"), "in transformers, .jinja files hide the others"
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").unlink()
    assert named(tmp_path) == ("e", "e")


def test_gguf_files_have_templates_by_name(tmp_path):
    keys = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "b{{ eos_token }}"}
    metadata = metadata_of_pieces(TOKENIZER.read_bytes()) | keys
    assert named(write_gguf(tmp_path / "x.gguf", metadata)) == ("b</s>", "b</s>")
    assert named(write_gguf(tmp_path / "y.gguf", metadata | {"tokenizer.chat_template": "a"})) == ("a", "b</s>")


def test_gguf_metadata(tmp_path):
    text = "{{ bos_token }}x{{ eos_token }}"
    metadata = metadata_of_pieces(TOKENIZER.read_bytes()) | {"tokenizer.chat_template": text}
    path = write_gguf(tmp_path / "x.gguf", metadata)
    assert found(path) == found(tmp_path) == (text, str(path))
    with load_chat_template([path], STORYTELLER) as template:
        assert template.render([]) == "<s>x</s>"
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert found(path)[0] != "beside", "a file's own comes first"
    shutil.copy(TOKENIZER, tmp_path / "t.model")
    assert found(tmp_path / "t.model", path)[0] == "beside", "what is beside the tokenizer comes before the weights'"
    del metadata["tokenizer.chat_template"]
    assert found(write_gguf(tmp_path / "y.gguf", metadata))[0] == "beside"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("chat_template.json", '{"chat_template": 5}', "its chat_template is 5, expected text"),
        (
            "chat_template.json",
            '{"chat_template": [{"name": 3, "template": "x"}]}',
            "expected text, or texts with names",
        ),
        ("tokenizer_config.json", "x", "cannot be read as JSON"),
        ("chat_template.jinja", b"\xff\xfe", "is not UTF-8"),
        ("chat_template.jinja", b"a" * (1 << 20) + b"b", "larger than 1048576 bytes; this is not a chat template"),
    ],
)
def test_faulty_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError, match=message):
        found(tmp_path)


def test_faulty_metadata_and_a_missing_file(tmp_path):
    metadata = metadata_of_pieces(TOKENIZER.read_bytes()) | {"tokenizer.chat_template": 7}
    with pytest.raises(TokenizerError, match=r"`tokenizer\.chat_template` is 7, expected text"):
        found(write_gguf(tmp_path / "x.gguf", metadata))
    with pytest.raises(TokenizerError, match=r"missing\.jinja: cannot be read: No such file"):
        found(tmp_path, file=tmp_path / "missing.jinja")
