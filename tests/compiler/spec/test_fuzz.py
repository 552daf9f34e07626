"""Mutated specs are read or refused with a SpecError; nothing else."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr_tests.family_specs import family_spec

TEXTS = [
    "\n".join(line for line in find_spec("llama-3.2-1b").read_text(encoding="utf-8").splitlines() if line[:1] != "#"),
    *(dump_spec(family_spec(name)) for name in ("gemma-like", "deepseek-like", "rope-longrope-long")),
]
LINES = [text.splitlines() for text in TEXTS]
ANY_LINE = st.sampled_from([line for lines in LINES for line in lines])
ANY_TEXT = st.integers(0, len(TEXTS) - 1)
FRAGMENTS = st.sampled_from(
    [
        *("{", "}", "[", "]", "&a ", "*a", "<<: ", "!!int ", "? ", "- ", "|", ">", "\t", ":", ": ", "#", "'", '"', "~"),
        *(
            "1e999",
            "-1",
            "0",
            ".nan",
            "9" * 500,
            "true",
            "null",
            "é",
            "\ud800",
            "\0",
            "\x85",
            "2001-01-01",
            "%YAML 1.9",
        ),
        *("\n", "---", "kind: none", "  ", "head_dim: 7", '"\\U00110000"'),
    ]
)
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def check(text: str) -> None:
    try:
        spec = parse_spec(text)
    except SpecError as error:
        assert str(error).encode("utf-8")
        assert "pydantic" not in str(error)
    else:
        assert parse_spec(dump_spec(spec)) == spec


EDITS = st.tuples(st.integers(0, 10**6), st.integers(0, 20), FRAGMENTS | st.text(max_size=5))


@SETTINGS
@given(ANY_TEXT, st.lists(EDITS, max_size=5))
def test_mutated_characters(which: int, edits: list[tuple[int, int, str]]) -> None:
    text = TEXTS[which]
    for place, length, replacement in edits:
        position = place % (len(text) + 1)
        text = text[:position] + replacement + text[position + length :]
    check(text)


@SETTINGS
@given(st.lists(st.tuples(ANY_LINE, st.integers(0, 6)), max_size=40))
def test_shuffled_lines(lines: list[tuple[str, int]]) -> None:
    check("\n".join(" " * indent + line for line, indent in lines))


@SETTINGS
@given(
    ANY_TEXT,
    st.integers(0, 10**6),
    FRAGMENTS | st.text(max_size=20) | st.integers().map(str) | st.floats().map(repr),
)
def test_replaced_values(which: int, place: int, value: str) -> None:
    lines = list(LINES[which])
    index = place % len(lines)
    lines[index] = f"{lines[index].partition(':')[0]}: {value}"
    check("\n".join(lines))
