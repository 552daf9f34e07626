"""The cases of llama.cpp's own test of parsed answers, read from its sources by a C++ compiler.

The test is a program: helpers, loops, raw strings, values with names. So the part of it that lists cases is compiled
with our own `peg_tester` in the place of llama.cpp's, which writes each case as JSON where llama.cpp's runs it.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxr_tests.outside_cases import CPP_TOKEN

_FIRST = "static common_chat_tool "
_AFTER_VALUES = "struct peg_test_case"
_LISTS = re.compile(r"^static void (test_\w+)\(([^)]*)bool detailed_debug\) \{", re.MULTILINE)
_FUNCTION = re.compile(r"^static void test_\w+\(", re.MULTILINE)
_OTHER_CHECK = "common_chat_templates_apply"


@dataclass(frozen=True)
class Message:
    """What an answer is parsed to, or one that came before. A call is its name, its arguments as text, and an id."""

    role: str
    content: str
    reasoning: str
    calls: tuple[tuple[str, str, str], ...]
    call_id: str


@dataclass(frozen=True)
class ChatCase:
    """An answer, and what llama.cpp expects of it.

    Attributes:
        template: the name of the template's file.
        answer: what the model has written.
        tools: in OpenAI's form.
        messages: before the answer.
        reasoning: whether it is told apart.
        thinks: the template's `enable_thinking`.
        continued: `content` or `reasoning` if the last message is to be continued there, else nothing.
        choice: `auto`, `required` or `none`.
        schema: of the answer's content, as text; often none.
        is_partial: whether more would come.
        expected: the answer's message.
    """

    template: str
    answer: str
    tools: tuple[dict[str, Any], ...]
    messages: tuple[Message, ...]
    reasoning: bool
    thinks: bool
    continued: str
    choice: str
    schema: str
    is_partial: bool
    expected: Message


def chat_cases(folder: Path, compiler: Sequence[str] = ("c++", "-std=c++17", "-O0", "-w")) -> list[ChatCase]:
    """All cases in llama.cpp's `tests/test-chat.cpp`.

    Args:
        folder: llama.cpp's sources.
        compiler: the command.

    Raises:
        subprocess.CalledProcessError: the test has something that is not known here; its `stderr` says what.
    """
    program = _program((folder / "tests/test-chat.cpp").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        source, binary = Path(temporary) / "cases.cpp", Path(temporary) / "cases"
        source.write_text(program)
        subprocess.run([*compiler, str(source), "-o", str(binary)], check=True, capture_output=True, text=True)
        lines = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout.splitlines()
    return [_case(json.loads(line)) for line in lines]


def _program(text: str) -> str:
    """The part of the test that lists cases, as a program that writes them."""
    lists = list(_LISTS.finditer(text))
    ends = [match.start() for match in _FUNCTION.finditer(text) if match.start() > lists[-1].start()]
    values = text[text.index(_FIRST) : text.index(_AFTER_VALUES)]
    body = _without_other_checks(text[lists[0].start() : ends[0]])
    calls = "".join(f"{match[1]}(false);\n" for match in lists if not match[2])
    return f"{_SHIM}\n{values}\n{_TESTER}\n{body}\nint main() {{\n{calls}}}\n"


def _without_other_checks(text: str) -> str:
    """The text without the blocks that check llama.cpp's rendering, which are no cases of answers."""
    opened: list[int] = []
    blocks: list[tuple[int, int]] = []
    for token in CPP_TOKEN.finditer(text):
        if token["sign"] == "{":
            opened.append(token.start())
        elif token["sign"] == "}":
            start = opened.pop()
            inner = any(start < other for other, _ in blocks)
            if not inner and _OTHER_CHECK in text[start : token.end()]:
                blocks.append((start, token.end()))
    for start, end in reversed(blocks):
        text = f"{text[:start]}{{}}{text[end:]}"
    return text


def _case(read: dict[str, Any]) -> ChatCase:
    tools = tuple(
        {
            "type": "function",
            "function": {"name": name, "description": about, "parameters": json.loads(parameters)},
        }
        for name, about, parameters in read["tools"]
    )
    return ChatCase(
        read["template"],
        read["answer"],
        tools,
        tuple(_message(message) for message in read["messages"]),
        read["reasoning"],
        read["thinks"],
        read["continued"],
        read["choice"],
        read["schema"],
        read["partial"],
        _message(read["expected"]),
    )


def _message(read: dict[str, Any]) -> Message:
    calls = tuple((name, arguments, call_id) for name, arguments, call_id in read["calls"])
    return Message(read["role"], read["content"], read["thought"], calls, read["call_id"])


_SHIM = r"""
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
struct common_chat_tool_call { std::string name, arguments, id; };
struct common_chat_msg_content_part { std::string type, text; };
struct common_chat_msg {
    std::string role, content;
    std::vector<common_chat_msg_content_part> content_parts;
    std::vector<common_chat_tool_call> tool_calls;
    std::string reasoning_content, tool_name, tool_call_id;
};
struct common_chat_tool { std::string name, description, parameters; };
enum common_chat_tool_choice {
    COMMON_CHAT_TOOL_CHOICE_AUTO, COMMON_CHAT_TOOL_CHOICE_REQUIRED, COMMON_CHAT_TOOL_CHOICE_NONE };
enum common_reasoning_format {
    COMMON_REASONING_FORMAT_NONE, COMMON_REASONING_FORMAT_AUTO, COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY,
    COMMON_REASONING_FORMAT_DEEPSEEK };
enum common_chat_continuation {
    COMMON_CHAT_CONTINUATION_NONE, COMMON_CHAT_CONTINUATION_AUTO, COMMON_CHAT_CONTINUATION_REASONING,
    COMMON_CHAT_CONTINUATION_CONTENT };
static std::string g_template_filter;
static int read_templates(const std::string &) { return 0; }
#define LOG_DBG(...)
"""
_TESTER = r"""
struct case_writer {
    std::string path, answer, schema;
    std::vector<common_chat_tool> given;
    std::vector<common_chat_msg> before;
    common_chat_msg expected;
    common_reasoning_format form = COMMON_REASONING_FORMAT_NONE;
    common_chat_tool_choice choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
    common_chat_continuation continued = COMMON_CHAT_CONTINUATION_NONE;
    bool thinks = true, partial = false;

    case_writer & reasoning_format(common_reasoning_format value) { form = value; return *this; }
    case_writer & tools(std::vector<common_chat_tool> value) { given = value; return *this; }
    case_writer & enable_thinking(bool value) { thinks = value; return *this; }
    case_writer & parallel_tool_calls(bool) { return *this; }
    case_writer & add_generation_prompt(bool) { return *this; }
    case_writer & continue_final_message(common_chat_continuation value) { continued = value; return *this; }
    case_writer & json_schema(const std::string & value) { schema = value; return *this; }
    case_writer & is_partial(bool value) { partial = value; return *this; }
    case_writer & expect_reconstruction(bool = true) { return *this; }
    case_writer & expect(const common_chat_msg & value) { expected = value; return *this; }
    case_writer & expect_content(const std::string & value) { expected.content = value; return *this; }
    case_writer & expect_reasoning(const std::string & value) { expected.reasoning_content = value; return *this; }
    case_writer & expect_tool_calls(std::vector<common_chat_tool_call> value) {
        expected.tool_calls = value;
        return *this;
    }
    case_writer & tool_choice(common_chat_tool_choice value) { choice = value; return *this; }
    case_writer & messages(std::vector<common_chat_msg> value) { before = value; return *this; }

    static void text(const std::string & value) {
        putchar('"');
        for (unsigned char c : value) {
            if (c == '"' || c == '\\') {
                printf("\\%c", c);
            } else if (c < 32) {
                printf("\\u%04x", c);
            } else {
                putchar(c);
            }
        }
        putchar('"');
    }
    static void field(const char * name, const std::string & value) {
        printf("\"%s\": ", name);
        text(value);
        printf(", ");
    }
    static void list(std::initializer_list<std::string> values) {
        const char * between = "[";
        for (const auto & value : values) {
            printf("%s", between);
            text(value);
            between = ", ";
        }
        printf("]");
    }
    static void message(const common_chat_msg & value) {
        printf("{");
        field("role", value.role);
        field("content", value.content);
        field("thought", value.reasoning_content);
        field("call_id", value.tool_call_id);
        printf("\"calls\": [");
        for (size_t i = 0; i < value.tool_calls.size(); i++) {
            printf("%s", i ? ", " : "");
            list({ value.tool_calls[i].name, value.tool_calls[i].arguments, value.tool_calls[i].id });
        }
        printf("]}");
    }
    void run() {
        if (before.empty()) {
            before = { message_user };
        }
        printf("{");
        field("template", path.substr(path.rfind('/') + 1));
        field("answer", answer);
        field("schema", schema);
        field("continued", continued == COMMON_CHAT_CONTINUATION_CONTENT ? "content"
                : continued == COMMON_CHAT_CONTINUATION_NONE ? "" : "reasoning");
        field("choice", choice == COMMON_CHAT_TOOL_CHOICE_AUTO ? "auto"
                : choice == COMMON_CHAT_TOOL_CHOICE_NONE ? "none" : "required");
        printf("\"reasoning\": %s, ", form == COMMON_REASONING_FORMAT_NONE ? "false" : "true");
        printf("\"thinks\": %s, \"partial\": %s, ", thinks ? "true" : "false", partial ? "true" : "false");
        printf("\"tools\": [");
        for (size_t i = 0; i < given.size(); i++) {
            printf("%s", i ? ", " : "");
            list({ given[i].name, given[i].description, given[i].parameters });
        }
        printf("], \"messages\": [");
        for (size_t i = 0; i < before.size(); i++) {
            printf("%s", i ? ", " : "");
            message(before[i]);
        }
        printf("], \"expected\": ");
        message(expected);
        printf("}\n");
    }
};
struct peg_tester {
    std::string path;
    explicit peg_tester(const std::string & value, bool = false) : path(value) {}
    case_writer test(const std::string & answer) {
        case_writer writer;
        writer.path = path;
        writer.answer = answer;
        return writer;
    }
};
"""
