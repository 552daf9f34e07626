"""Chat templates: the text that transformers makes of them, their errors, and the end of hostile ones."""

import time
from pathlib import Path

import pytest

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.sealed.limited_process import LimitedProcess
from mlxr.runtime.tokenizer import chat_template
from mlxr.runtime.tokenizer.chat_template import ChatTemplate, process_begun
from mlxr_tests.vocabularies import WORDS, byte_level

FOLDER = Path(__file__).parents[2] / "data/chat_templates"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": ' Don\'t say "<hé> & 你好"!\n\n '}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nI won't. 🎉 "}
AGAIN = {"role": "user", "content": "Why\n  not?"}
SYSTEM = {"role": "system", "content": "You are brief."}
TOOL = {"type": "function", "function": {"name": "é", "parameters": {"type": "object", "required": ["<a>"]}}}
CONVERSATIONS = ([USER], [USER, ANSWER, AGAIN], [SYSTEM, USER], [SYSTEM, USER, ANSWER, AGAIN], [USER, ANSWER])


@pytest.fixture(scope="module")
def transformers_tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(WORDS["gpt-2"]), **TOKENS)


def test_there_are_ten_families():
    assert len(FAMILIES) >= 10


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_that_of_transformers(transformers_tokenizer, family):
    text = (FOLDER / f"{family}.jinja").read_text()
    variants = ({}, {"enable_thinking": False}, {"tools": [TOOL], "date_string": "1 May 2025"})
    with ChatTemplate(text, family, TOKENS) as template:
        for messages in CONVERSATIONS:
            for prompted in (True, False):
                for variables in variants:
                    expected = transformers_tokenizer.apply_chat_template(
                        messages, chat_template=text, tokenize=False, add_generation_prompt=prompted, **variables
                    )
                    assert template.render(messages, prompted, **variables) == expected


def test_a_process_that_was_begun_is_taken_or_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LimitedProcess] = []
    original = chat_template._new_process
    monkeypatch.setattr(chat_template, "_new_process", lambda: started.append(original()) or started[-1])
    with process_begun(), ChatTemplate("{{ messages[0].content }}", "here") as template:
        assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    assert len(started) == 1
    with process_begun():
        pass
    assert len(started) == 2 and started[1]._process.wait(30) != 0, "it was ended"


def test_what_families_look_like():
    """A few lines to read; the comparison above covers the rest."""
    expected = {
        "chatml": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "llama2": "<s>[INST] hi [/INST]",
        "mistral": "<s>[INST] hi[/INST]",
        "gemma": "<s><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
        "zephyr": "<|user|>\nhi</s>\n<|assistant|>\n",
    }
    for family, text in expected.items():
        with ChatTemplate((FOLDER / f"{family}.jinja").read_text(), family, TOKENS) as template:
            assert template.render([{"role": "user", "content": "hi"}]) == text


def rendered(text, messages=(USER,), **variables):
    with ChatTemplate(text, "here.gguf", TOKENS) as template:
        return template.render(messages, **variables)


def test_names_that_templates_may_use():
    assert rendered("{{ strftime_now('%Y') | int > 2000 }}") == "True"
    assert rendered("{{ {'b': '<é>', 'a': [1]} | tojson }}") == '{"b": "<é>", "a": [1]}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'
    assert rendered("{{ tools is none and documents is none }}{{ unknown }}") == "True"
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert rendered("a\n  {% if true %}\n  b\n  {% endif %}\nc") == "a\n  b\nc", "blocks leave no lines"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n{{ raise_exception('no system role') }}", "here.gguf, line 3: it refuses this conversation: no system"),
        ("{% if %}", "here.gguf, line 1: Expected an expression"),
        ("\n{{ messages[0].a.b }}", "here.gguf, line 2: 'dict object' has no attribute 'a'"),
        ("{{ messages[0].content + 5 }}", "here.gguf, line 1: TypeError: "),
        ("{% include '/etc/passwd' %}", "here.gguf, line 1: TypeError: no loader"),
        ("{{ '\\ud800' }}", "here.gguf: UnicodeEncodeError"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "access to attribute '__init__' of 'type' object is unsafe"),
        ("{{ '{0.__class__.__mro__}'.format('') }}", "access to attribute '__class__' of 'str' object is unsafe"),
    ],
)
def test_faults_name_the_template_and_the_line(text, message):
    with pytest.raises(ChatTemplateError, match=r"chat template of here\.gguf") as caught:
        rendered(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            "took more than 2 s of CPU time; it was stopped",
        ),
        ("{% for a in range(1000000000) %}x{% endfor %}", "Range too big"),
        ("{{ 'a' * 10000000000 }}", "too much memory"),
        pytest.param("{{ 'a' * 300000000 }}", "too much memory|longer than|more than", marks=pytest.mark.long),
        ("{{ '%1000000000d' % 1 }}", "too much memory"),
        pytest.param("{{ '{:1000000000}'.format(1) }}", "too much memory", marks=pytest.mark.long),
        pytest.param("{{ 'a' | center(3000000000) }}", "too much memory", marks=pytest.mark.long),
        ("{{ ('a' * 100000) | replace('a', 'b' * 10000) }}", "too much memory"),
        (
            "{% set ns = namespace(x=[0]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "too much memory",
        ),
        ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "its text is longer than 4194... characters"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "nested too deeply"),
        ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "nested too deeply"),
        ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "nested too deeply"),
        pytest.param(
            "{{ 99999 ** 9999999 }}", "took more than 2 s of CPU time|too much memory", marks=pytest.mark.long
        ),
        pytest.param("{{ lipsum(n=100000) }}", "took more than 2 s of CPU time", marks=pytest.mark.long),
    ],
)
def test_hostile_templates_end(monkeypatch, text, message):
    if "of CPU time" in message and "lipsum" not in text:
        monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
        message = message.replace("2 s", "1 s")
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match=f"chat template of here.gguf.*({message})"):
        rendered(text)
    assert time.monotonic() - start < 20


def test_long_conversations_are_no_hostile_templates():
    content = 'é"' * (chat_template.MOST_CHARACTERS * 3 // 4)
    assert rendered("{{ messages[0].content }}", [{"role": "user", "content": content}]) == content


def test_a_stopped_template_works_again(monkeypatch):
    """One conversation that is too long for it does not end the template's use."""
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    text = "{% for i in range(messages[0].n) %}{% for j in range(99999) %}{% endfor %}{% endfor %}ok"
    with ChatTemplate(text, "here") as template:
        with pytest.raises(ChatTemplateError, match="CPU time"):
            template.render([{"n": 99999}])
        assert template.render([{"n": 1}]) == "ok"
    assert template.render([{"n": 2}]) == "ok", "closed, it starts again"
    template.close()
    monkeypatch.setattr(chat_template, "WALL_SECONDS", 0.2)
    with pytest.raises(ChatTemplateError, match=r"it took more than 0\.2 s; it was stopped"):
        template.render([{"n": 99999}])


def test_one_process_serves_all():
    with ChatTemplate((FOLDER / "llama3.jinja").read_text(), "here", TOKENS) as template:
        template.start()
        process = template._process
        assert process is not None
        texts = {template.render([USER, ANSWER, AGAIN]) for _ in range(3)}
        assert template._process is process and len(texts) == 1


def num_descriptors():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_the_process_sees_no_environment_and_keeps_no_descriptors(monkeypatch):
    monkeypatch.setenv("SECRET", "xyzzy")
    before = num_descriptors()
    template = ChatTemplate("{{ messages }}", "here")
    template.render([USER])
    assert template._process is not None
    environment = Path(f"/proc/{template._process.pid}/environ")
    if environment.exists():
        assert b"xyzzy" not in environment.read_bytes()
    template.close()
    assert num_descriptors() == before


def test_large_conversations_pass_through_the_pipe():
    content = "é" * 1_000_000
    with ChatTemplate("{{ messages[0].content }}", "here") as template:
        assert template.render([{"role": "user", "content": content}]) == content
