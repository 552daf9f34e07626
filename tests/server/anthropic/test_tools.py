"""Tools that clients name by their types, that services run, or that are told later; and what they return."""

from typing import Any, get_args

import anthropic
import pytest
from anthropic.types import beta

from mlxr.server.anthropic.conversation import job_of
from mlxr.server.anthropic.known_tools import KNOWN_TOOLS
from mlxr.server.anthropic.messages_request import MessagesRequest
from mlxr.server.request_record import RECORD, RequestRecord
from mlxr_tests.running_server import RunningServer

OWN = {"name": "own", "input_schema": {"type": "object"}}
LATER = OWN | {"name": "later", "defer_loading": True}
SERVICES = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "advisor", "computer", "browser")


def job(tools: list[Any], messages: list[Any] | None = None, **fields: Any) -> tuple[Any, list[str]]:
    """What is asked of the model, and the warnings."""
    token = RECORD.set(record := RequestRecord("POST", "/v1/messages"))
    try:
        asked = {"model": "m", "max_tokens": 1, "messages": messages or [{"role": "user", "content": "x"}]}
        return job_of(MessagesRequest.model_validate(asked | {"tools": tools} | fields)), record.warnings
    finally:
        RECORD.reset(token)


def sdk_types() -> dict[str, Any]:
    """Each type of tool that Anthropic's SDK knows, with the class of its parameters."""
    types = {}
    for tool in get_args(beta.BetaToolUnionParam):
        annotation = str(tool.__annotations__["type"])
        names = [word for word in annotation.replace('"', "'").split("'") if word.isidentifier() and word.islower()]
        types |= dict.fromkeys(names, tool)
    return types


def test_all_tools_of_the_sdk_pass() -> None:
    """Those that a client runs are told to the model, the others are left out, with a warning."""
    known = sdk_types()
    assert len(known) > 25 and {"custom", "bash_20250124", "mcp_toolset"} <= known.keys()
    for kind in known.keys() - {"custom"}:
        asked, warnings = job([{"type": kind, "name": "given"}, OWN])
        if kind.startswith(("bash_", "text_editor_", "memory_")):
            assert asked.tool_names == ("given", "own") and not warnings
        else:
            assert kind.startswith(SERVICES) or kind == "mcp_toolset"
            assert asked.tool_names == ("own",)
            assert len(warnings) == 1 and warnings[0].startswith(f"tools[0] is left out: {kind} ")


def test_inputs_of_known_tools_are_those_of_the_sdk() -> None:
    commands = get_args(get_args(beta.BetaMemoryTool20250818Command)[0])
    fields = {name for command in commands for name in command.model_fields}
    _, schema = KNOWN_TOOLS["memory_20250818"]
    assert set(schema["properties"]) == fields
    assert set(schema["properties"]["command"]["enum"]) == {
        get_args(command.model_fields["command"].annotation)[0] for command in commands
    }
    for kind, undoes in (("text_editor_20250124", True), ("text_editor_20250728", False)):
        properties = KNOWN_TOOLS[kind][1]["properties"]
        assert ("undo_edit" in properties["command"]["enum"]) == undoes == ("insert_text" not in properties)


def test_tools_that_are_deferred_are_told_when_a_result_refers_to_them() -> None:
    found = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "later"}]}
    call = {"type": "tool_use", "id": "t", "name": "own", "input": {}}
    asked = {"role": "user", "content": "x"}
    searched = [asked, {"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    assert job([LATER, OWN])[0].tool_names == ("own",)
    told, warnings = job([LATER, OWN], searched)
    assert told.tool_names == ("own", "later") and not warnings
    assert "later" in told.messages[-1]["content"]
    assert job([LATER | {"defer_loading": False}])[0].tool_names == ("later",)
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    told, warnings = job([LATER, search])
    assert told.tool_names == ("later",) and len(warnings) == 2


def test_messages_add_and_remove_tools() -> None:
    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": kind, "tool": tool}]}

    new = {"name": "new", "input_schema": {"type": "object"}}
    asked = {"role": "user", "content": "x"}
    added = change("tool_addition", type="tool_definition", definition=new)
    found = change("tool_addition", type="tool_reference", name="later")
    removed = change("tool_removal", type="tool_reference", name="own")
    back = change("tool_addition", type="tool_reference", name="own")
    told, warnings = job([OWN, LATER], [asked, added])
    assert told.tool_names == ("own", "new") and told.messages == (asked,) and not warnings
    assert job([OWN, LATER], [asked, added, found])[0].tool_names == ("own", "new", "later")
    assert job([OWN, LATER], [asked, found, removed])[0].tool_names == ("later",)
    assert job([OWN, LATER], [asked, found, removed, back])[0].tool_names == ("later", "own")
    hosted = {"type": "web_fetch_20250910", "name": "web_fetch"}
    told, warnings = job([OWN], [asked, change("tool_addition", type="tool_definition", definition=hosted)])
    assert told.tool_names == ("own",) and warnings[0].startswith("messages[1].content[0].tool.definition is left out")


def test_fields_for_the_service_pass_with_a_warning() -> None:
    fields: dict[str, Any] = {
        "container": "c",
        "mcp_servers": [{"type": "url", "url": "https://example.com", "name": "x"}],
        "metadata": {"user_id": "u"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "service_tier": "standard_only",
        "fallbacks": [{"model": "n"}],
    }
    asked, warnings = job([OWN | {"allowed_callers": ["direct"], "cache_control": {"type": "ephemeral"}}], **fields)
    assert {text.split()[0] for text in warnings} == set(fields) and asked.tool_names == ("own",)
    examples = job([OWN | {"description": "Does.", "input_examples": [{"x": "é"}]}])[0].tools[0]["function"]
    assert examples["description"] == 'Does.\n\nExamples of its input:\n{"x": "é"}'


def test_documents_and_results_of_searches_are_text() -> None:
    plain = {"type": "document", "title": "A", "source": {"type": "text", "media_type": "text/plain", "data": "b"}}
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "c"}]}}
    found = {"type": "search_result", "title": "D", "source": "e", "content": [{"type": "text", "text": "f"}]}
    asked, _ = job([], [{"role": "user", "content": [plain, blocks, found]}])
    assert asked.messages[0]["content"] == "A\nb\nc\nD\ne\nf"


@pytest.mark.parametrize("stream", [False, True])
def test_tool_runners_go_on_without_a_thread(server: RunningServer, stream: bool) -> None:
    """They ask for a thread, and know by the error that there is none."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather.

        Args:
            city: where.
        """
        return f"fine in {city}"

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        asked = {"role": "user", "content": "Hello there"}
        body: dict[str, Any] = {"model": "tools", "max_tokens": 8, "messages": [asked], "stream": stream}
        hosted = {"type": "web_search_20250305", "name": "web_search"}
        runner: Any = client.beta.messages.tool_runner(**body, tools=[weather, hosted], extra_body={"temperature": 0})
        told = runner.until_done()
    assert told.content[0].text and told.usage.output_tokens == 8
    assert told.model_extra["warnings"] == [
        "tools[1] is left out: web_search_20250305 is run by a service, which this server does not have"
    ]


def test_counting_takes_what_messages_take(server: RunningServer) -> None:
    tools = [OWN, {"type": "web_fetch_20250910", "name": "web_fetch"}]
    body = {"model": "tools", "messages": [{"role": "user", "content": "Hello there"}], "tools": tools}
    counted = server.http.post("/v1/messages/count_tokens", json=body).json()
    usage = server.http.post("/v1/messages", json=body | {"max_tokens": 1}).json()["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert len(counted["warnings"]) == 1
