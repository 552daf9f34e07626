"""Small chat templates, in the forms that published models have. They are our own."""

_HEAD = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
_TURNS = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content %}THOUGHT{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_THINK = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"
_LIST = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.reasoning_content %}THOUGHT{% endif %}{{ m.content }}
{%- if m.tool_calls %}BEGIN{% for c in m.tool_calls %}CALL{% if not loop.last %}BETWEEN{% endif %}{% endfor %}END
{%- endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _each(call: str, thought: str = "") -> str:
    return _HEAD + _TURNS.replace("THOUGHT", thought).replace("CALL", call)


def _list(begin: str, call: str, between: str, end: str, thought: str = "") -> str:
    parts = {"THOUGHT": thought, "BEGIN": begin, "CALL": call, "BETWEEN": between, "END": end}
    text = _HEAD + _LIST
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


_OBJECT = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
_ARGUMENTS = "{% for k, v in c.function.arguments.items() %}ARGUMENT{% endfor %}"
_VALUE = "{{ v if v is string else v | tojson }}"

PLAIN = _each("", _THINK).replace("{% for c in m.tool_calls or [] %}{% endfor %}", "").removeprefix(_HEAD)
QWEN = _each(f"\n<tool_call>\n{_OBJECT}\n</tool_call>", _THINK)
LLAMA = (
    _HEAD
    + """\
{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('only one') }}{% endif %}
{%- set c = m.tool_calls[0] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}
{%- elif m.role == 'tool' %}{{ m.content }}{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
)
_MISTRAL = """\
{%- for m in messages %}{% if m.role == 'assistant' %}
{%- if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}CALLS</s>
{%- elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}
{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"""
MISTRAL_LIST = _HEAD + _MISTRAL.replace(
    "CALLS",
    "{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('length 9!') }}{% endif %}{{ c.function | tojson }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}]{% endif %}",
)
MISTRAL = _HEAD + _MISTRAL.replace(
    "CALLS",
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}",
)
GLM = _each(
    "\n<tool_call>{{ c.function.name }}\n"
    + _ARGUMENTS.replace("ARGUMENT", f"<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{_VALUE}</arg_value>\n")
    + "</tool_call>",
    "<think>{{ m.reasoning_content }}</think>\n",
)
CODER = _each(
    "\n<tool_call>\n<function={{ c.function.name }}>\n"
    + _ARGUMENTS.replace("ARGUMENT", f"<parameter={{{{ k }}}}>\n{_VALUE}\n</parameter>\n")
    + "</function>\n</tool_call>",
    _THINK,
)
PYTHON = _list(
    "<|tool_call_start|>[",
    "{{ c.function.name }}("
    + _ARGUMENTS.replace("ARGUMENT", "{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}")
    + ")",
    ", ",
    "]<|tool_call_end|>",
)
KIMI = _list(
    "<|calls_begin|>",
    "<|call_begin|>functions.{{ c.function.name }}:{{ loop.index0 }}<|call_args|>{{ c.function.arguments | tojson }}"
    "<|call_end|>",
    "",
    "<|calls_end|>",
    "<think>{{ m.reasoning_content }}</think>",
)
HARMONY = (
    _HEAD
    + """\
{%- for m in messages %}{% if m.role == 'assistant' %}{% if 'tool_calls' in m %}
{%- if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}
{{- '<|start|>assistant to=functions.' + m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|start|>assistant<|channel|>final<|message|>
{{- m.content }}<|end|>{% endif %}{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
)
XML = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATES = {
    "plain": PLAIN,
    "qwen": QWEN,
    "llama": LLAMA,
    "mistral list": MISTRAL_LIST,
    "mistral": MISTRAL,
    "glm": GLM,
    "coder": CODER,
    "python": PYTHON,
    "kimi": KIMI,
    "harmony": HARMONY,
}
CONTROL = {
    "plain": XML,
    "qwen": XML,
    "llama": ("<|python_tag|>", "<|eot_id|>"),
    "mistral list": ("[TOOL_CALLS]", "[THINK]", "[/THINK]"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "glm": (*XML, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "coder": XML,
    "python": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "kimi": ("<|calls_begin|>", "<|call_begin|>", "<|call_args|>", "<|call_end|>", "<|calls_end|>"),
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
}
"""The control tokens of models of these forms, by their names; in some files of a model they are text."""
