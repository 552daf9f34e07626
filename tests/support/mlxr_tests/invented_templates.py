"""Chat templates with forms of calls and thoughts that no published model has: they must be learned."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Invented:
    """A template.

    Attributes:
        text: the program.
        ends: what ends a turn of the assistant.
        control: names of control tokens besides those that `ends` has.
        thinks: whether it writes thoughts.
        without: messages of `template_answers` that it cannot write so that they could be read.
    """

    text: str
    ends: tuple[str, ...]
    control: tuple[str, ...] = ()
    thinks: bool = False
    without: tuple[str, ...] = ()


def _turns(answer: str, *, head: str = "<|im_start|>", end: str = "<|im_end|>", opened: str = "") -> str:
    """A template whose turns have the role first. `answer` is the program of an assistant's message `m`."""
    text = (
        "{%- if tools %}" + head + "system\n# Tools\n{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}"
        "Say what you want." + end + "\n{% endif %}"
        "{%- for m in messages %}"
        "{%- if m.role == 'assistant' %}" + head + "assistant\n" + answer + end + "\n"
        "{%- elif m.role == 'tool' %}" + head + "tool\n{{ m.content }}" + end + "\n"
        "{%- else %}" + head + "{{ m.role }}\n{{ m.content }}" + end + "\n{%- endif %}{% endfor %}"
        "{%- if add_generation_prompt %}" + head + "assistant\n" + opened + "{% endif %}"
    )
    return text.replace("%}\n", "%}{{ '\\n' }}")  # a line's end behind a statement is no text


_IM = ("<|im_end|>",)
_JSON = "{{ c.function.arguments | tojson }}"
_NAME = "{{ c.function.name }}"
_EACH = "{% for c in m.tool_calls or [] %}"
_ARGUMENTS = "{% for k, v in c.function.arguments.items() %}"
_DONE = "{% endfor %}"
_VALUE = "{{ v if v is string else v | tojson }}"


def _bare(opening: str, calls: str, closing: str) -> str:
    return "{% if m.tool_calls %}" + opening + calls + closing + "{% endif %}"


INVENTED = {
    "JSON in odd brackets": Invented(
        _turns("{{ m.content }}" + _EACH + '⟦{"name": "' + _NAME + '", "arguments": ' + _JSON + "}⟧" + _DONE), _IM
    ),
    "arguments before the name": Invented(
        _turns(
            "{{ m.content }}" + _EACH + "\n<invoke>\n{" + '"input": ' + _JSON + ', "tool": "' + _NAME + '"}\n</invoke>'
            "" + _DONE
        ),
        _IM,
    ),
    "names and values in attributes and tags": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + '\n<use tool="'
            + _NAME
            + '">'
            + _ARGUMENTS
            + '\n<in name="{{ k }}">'
            + _VALUE
            + "</in>"
            + _DONE
            + "\n</use>"
            + _DONE
        ),
        _IM,
    ),
    "one argument per line": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n@@call "
            + _NAME
            + "\n"
            + _ARGUMENTS
            + "{{ k }}: {{ v | tojson }}\n"
            + _DONE
            + "@@end"
            + _DONE,
            head="### ",
            end="</s>",
        ),
        ("</s>",),
    ),
    "one argument per line, as it is": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n%% "
            + _NAME
            + " %%\n"
            + _ARGUMENTS
            + "{{ k }} = "
            + _VALUE
            + "\n"
            + _DONE
            + "%% done %%"
            + _DONE
        ),
        _IM,
        without=("lines",),
    ),
    "calls in Python": Invented(
        _turns(
            "{{ m.content }}"
            + _bare(
                "<|py|>[",
                _EACH
                + _NAME
                + "("
                + _ARGUMENTS
                + "{{ k }}={{ v | tojson if v is string else v }}{{ '' if loop.last else ', ' }}"
                + _DONE
                + "){{ '' if loop.last else ', ' }}"
                + _DONE,
                "]<|/py|>",
            )
        ),
        _IM,
        ("<|py|>", "<|/py|>"),
    ),
    "a list with ids": Invented(
        _turns(
            "{{ m.content }}"
            + _bare(
                "<|calls|>[",
                _EACH
                + '{"id": "{{ c.id }}", "function": "'
                + _NAME
                + '", "args": '
                + _JSON
                + "}{{ '' if loop.last else ', ' }}"
                + _DONE,
                "]<|/calls|>",
            )
        ),
        _IM,
        ("<|calls|>", "<|/calls|>"),
    ),
    "typed values": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n[["
            + _NAME
            + "]]"
            + _ARGUMENTS
            + "{% if v is string %}\n<text of={{ k }}>{{ v }}</text>"
            "{% else %}\n<data of={{ k }}>{{ v | tojson }}</data>{% endif %}" + _DONE + "\n[[/]]" + _DONE,
            head="<s>",
            end="</s>",
        ),
        ("</s>",),
        ("<s>",),
    ),
    "almost YAML": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n~~~tool\nname: "
            + _NAME
            + "\narguments:\n"
            + _ARGUMENTS
            + "  {{ k }}: {{ v | tojson }}\n"
            + _DONE
            + "~~~"
            + _DONE
        ),
        _IM,
    ),
    "odd thoughts": Invented(
        _turns(
            "{% if m.reasoning_content %}((musing: {{ m.reasoning_content }} :musing))\n{% endif %}{{ m.content }}"
            + _EACH
            + "\nCALL "
            + _NAME
            + " WITH "
            + _JSON
            + " NOW"
            + _DONE
        ),
        _IM,
        thinks=True,
    ),
    "thoughts that the prompt opens": Invented(
        _turns(
            "<inner>\n{{ m.reasoning_content or '' }}\n</inner>\n\n{{ m.content }}"
            + _EACH
            + "\n<do>"
            + _NAME
            + "\n"
            + _JSON
            + "\n</do>"
            + _DONE,
            opened="<inner>\n",
        ),
        _IM,
        thinks=True,
    ),
    "a section of calls": Invented(
        _turns(
            "{{ m.content }}"
            + _bare(
                "<|section|>", _EACH + "<|call|>" + _NAME + "<|args|>" + _JSON + "<|/call|>" + _DONE, "<|/section|>"
            )
        ),
        _IM,
        ("<|section|>", "<|call|>", "<|args|>", "<|/call|>", "<|/section|>"),
    ),
    "wrapped text": Invented(
        _turns(
            "{% if m.reasoning_content %}<|why|>{{ m.reasoning_content }}<|/why|>{% endif %}"
            "{% if m.content %}<reply>{{ m.content }}</reply>{% endif %}"
            + _EACH
            + '<act>{"do": "'
            + _NAME
            + '", "with": '
            + _JSON
            + "}</act>"
            + _DONE
        ),
        _IM,
        ("<|why|>", "<|/why|>"),
        thinks=True,
    ),
    "counted calls": Invented(
        _turns(
            "{{ m.content }}"
            + _bare(
                "\n<calls>",
                _EACH + "\n#{{ loop.index }} tools." + _NAME + ":{{ loop.index0 }} -> " + _JSON + _DONE,
                "\n</calls>",
            )
        ),
        _IM,
    ),
    "a nested function": Invented(
        _turns(
            "{{ m.content }}"
            + _bare(
                '<|tools|>{"calls": [',
                _EACH
                + '{"type": "function", "function": {"name": "'
                + _NAME
                + '", "parameters": '
                + _JSON
                + "}}{{ '' if loop.last else ', ' }}"
                + _DONE,
                "]}",
            )
        ),
        _IM,
        ("<|tools|>",),
    ),
    "arguments as text": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + '\n<fn>{"fn": "'
            + _NAME
            + '", "json": {{ c.function.arguments | tojson | tojson'
            " }}}</fn>" + _DONE
        ),
        _IM,
    ),
    "a token ends the call and the turn": Invented(
        "{% for t in tools or [] %}{{ t.function | tojson }}\n{% endfor %}"
        "{%- for m in messages %}{% if m.role == 'user' %}[USER]{{ m.content }}[/USER]"
        "{%- elif m.role == 'assistant' %}{{ m.content }}"
        + _EACH
        + "<|tool|>"
        + _NAME
        + "<|sep|>"
        + _JSON
        + "<|eoc|>"
        + _DONE
        + "{% if not m.tool_calls %}</s>{% endif %}"
        "{%- else %}[RESULT]{{ m.content }}[/RESULT]{% endif %}{% endfor %}",
        ("<|eoc|>", "</s>"),
        ("<|tool|>", "<|sep|>", "[USER]", "[/USER]", "[RESULT]", "[/RESULT]"),
    ),
    "values as Python prints them": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n<run:"
            + _NAME
            + ">"
            + _ARGUMENTS
            + "<arg:{{ k }}>{{ v }}</arg>"
            + _DONE
            + "</run>"
            + _DONE
        ),
        _IM,
    ),
    "texts of Python": Invented(
        _turns(
            "{{ m.content }}"
            + _EACH
            + "\n$$"
            + _NAME
            + "("
            + _ARGUMENTS
            + "{{ k }}={{ ([v] | string)[1:-1] }}{{ '' if loop.last else ', ' }}"
            + _DONE
            + ")$$"
            + _DONE
        ),
        _IM,
    ),
    "quotes of its own, and names in order": Invented(
        "{% macro show(v) %}{% if v is string %}<|q|>{{ v }}<|q|>"
        "{% elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}{{ k }}:{{ show(x) }}"
        "{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}"
        "{% elif v is iterable %}[{% for x in v %}{{ show(x) }}{{ '' if loop.last else ',' }}{% endfor %}]"
        "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
        + _turns("{{ m.content }}" + _EACH + "<|do|>" + _NAME + "{{ show(c.function.arguments) }}<|done|>" + _DONE),
        _IM,
        ("<|q|>", "<|do|>", "<|done|>"),
    ),
    "tags in tags": Invented(
        "{% macro show(v) %}{% if v is string %}{{ v }}"
        "{% elif v is mapping %}{% for k, x in v.items() %}~<{{ k }}>{{ show(x) }}~</{{ k }}>{% endfor %}"
        "{% elif v is iterable %}{% for x in v %}~<each>{{ show(x) }}~</each>{% endfor %}"
        "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
        + _turns("{{ m.content }}" + _EACH + '~<go to="' + _NAME + '">{{ show(c.function.arguments) }}~</go>' + _DONE),
        _IM,
    ),
    "calls after an empty text": Invented(
        _turns(
            "<|say|>{{ m.content }}<|/say|>"
            + _bare("<|do|>", _EACH + "<|tool|>" + _NAME + "<|with|>" + _JSON + "<|/tool|>" + _DONE, "<|/do|>")
        ),
        _IM,
        ("<|say|>", "<|/say|>", "<|do|>", "<|/do|>", "<|tool|>", "<|with|>", "<|/tool|>"),
    ),
}
"""By what is odd about them."""
