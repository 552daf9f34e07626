"""Cases of answers are read from a test in the form of llama.cpp's, whatever C++ it is written in."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mlxr_tests.judged_chats import CaseJudge
from mlxr_tests.outside_chats import chat_cases

TEST = r"""
#include "unknown.h"
static common_chat_tool a_tool{ "f", "does it", R"({"type": "object", "properties": {"a": {"type": "string"}}})" };
const common_chat_msg message_user{ "user", "Hi", {}, {}, "", "", "" };
static common_chat_msg said(const std::string & text) {
    common_chat_msg m;
    m.role = "assistant";
    m.content = text;
    return m;
}
struct peg_test_case { int other; };
static void test_shared(const std::string & path, bool detailed_debug) {
    auto tst = peg_tester(path, detailed_debug);
    tst.test("plain \"text\"\n").expect(said("plain \"text\"")).run();
}
static void test_lists(bool detailed_debug) {
    for (const char * path : { "models/one.jinja", "models/two.jinja" }) { test_shared(path, detailed_debug); }
    {
        common_chat_templates_apply("{");  // no case
    }
    auto tst = peg_tester("models/one.jinja");
    const std::string closing = "</tool_call>";
    tst.test(R"(<tool_call>{"name": "f", "arguments": {"a": "}"}})" + closing)
        .reasoning_format(COMMON_REASONING_FORMAT_AUTO)
        .enable_thinking(false).tools({ a_tool })
        .expect_tool_calls({ { "f", R"#({"a":"}"})#", {} } })
        .run();
    tst.test("it").messages({ message_user, said("Hi ") }).continue_final_message(COMMON_CHAT_CONTINUATION_CONTENT)
        .expect_content("Hi it").run();
}
static void test_something_else() { no_such_function(); }
"""
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_cases_are_those_that_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test-chat.cpp").write_text(TEST)
    first, second, call, continued = chat_cases(tmp_path)
    assert (first.template, second.template) == ("one.jinja", "two.jinja")
    assert first.answer == 'plain "text"\n' and first.expected.content == 'plain "text"'
    assert not first.tools and not first.reasoning and first.thinks and first.messages[0].content == "Hi"
    assert call.expected.calls == (("f", '{"a":"}"}', ""),) and call.reasoning and not call.thinks
    assert call.tools[0]["function"]["parameters"]["properties"] == {"a": {"type": "string"}}
    assert continued.continued == "content" and continued.messages[1].content == "Hi "
    judge = CaseJudge(TEMPLATE, num_cuts=3)
    try:
        for way in ("tokens", "text"):
            assert [judge.judge(case, way) for case in (first, call, continued)] == ["", "", ""]
            assert judge.judge(replace(call, answer="no call"), way).startswith("content: ")
    finally:
        judge.close()
