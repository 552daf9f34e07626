"""Errors point at the exact place, say what was expected, and suggest what was meant."""

import json

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.load import dump_spec, load_spec, parse_spec

BASE = """\
name: tiny
model:
  vocab_size: 100
  hidden_size: 96
  num_layers: 2
  context: 64
  norm: {eps: 1e-5}
  rope: {theta: 10000.0}
  attention:
    num_heads: 6
    num_kv_heads: 2
    head_dim: 32
  mlp:
    intermediate_size: 160
cache:
  block_size: 8
  num_blocks: 9
prefill_chunk: 16
"""

ROPE = "rope: {theta: 10000.0}"
HEAD_DIM = "    head_dim: 32\n"

# what to replace, by what, line:column, text in the message, fix (None: there must be none)
MISTAKES = [
    ("block_size: 8", "block_size: 0", "16:15", "cache.block_size is 0; expected a whole number of at least 1", None),
    ("block_size: 8", "block_size: 2048", "16:15", "is 2048; expected a whole number of at most 1024", None),
    ("block_size: 8", "block_size: 12", "16:15", "block_size 12 is not a power of two", "nearest are 8 and 16"),
    ("block_size: 8", "block_size: true", "16:15", "is true; expected a whole number from 1 to 1024", None),
    ("block_size: 8", "block_size: 010", "16:15", 'is "010"; expected a whole number', None),
    ("block_size: 8", "dtype: float16", "16:10", 'is "float16"; expected one of f32, f16, bf16', 'mean "f16"'),
    ("block_size: 8", "layout: blok", "16:11", 'cache.layout is "blok"; expected one of block, layer', 'mean "block"'),
    (
        "block_size: 8",
        "mode: contiguous\n  max_sequences: 2",
        "16:9",
        "contiguous holds one sequence, got max",
        "paged",
    ),
    ("block_size: 8", "mode: contiguous\n  block_size: 4", "18:15", "num_blocks 9 x block_size 4", "use 16 blocks"),
    ("block_size: 8", "memory_budget: 1MiB", "16:18", "both size the arena", "one of them"),
    ("block_size: 8", "memory_budget: 12 potatoes", "16:18", '"12 potatoes"; expected a size such as 512MiB', None),
    ("num_blocks: 9", "num_blocks: 2147483647", "17:15", "more than 2^31 - 1 token slots", None),
    ("num_blocks: 9", "memory_budget: 1.5", "17:18", "is 1.5; expected a size such as 512MiB", None),
    ("num_blocks: 9", "memory_budget: 1KiB", "17:18", "1024 bytes is less than one block of 4096 bytes", None),
    ("num_blocks: 9", "memory_budget: 1000000GiB", "17:18", "more than 2^31 - 1 token slots", None),
    ("num_blocks: 9", "memory_budget: 99999999999GiB", "17:18", "expected a size of at most", None),
    ("num_layers: 2", "num_layer: 2", "5:3", "unknown key model.num_layer", 'mean "num_layers"'),
    ("num_layers: 2", "num_hidden_layers: 2", "5:3", "unknown key model.num_hidden_layers", 'mean "num_layers"'),
    ("num_layers: 2", "num_layers: 5000", "5:15", "of at most 1024", None),
    (
        "num_layers: 2",
        "num_layers: 2\n  num_layers: 3",
        "6:3",
        "model.num_layers is given twice; first on line 5",
        None,
    ),
    ("num_layers: 2", "num_layers: 2\n  5: 3", "6:3", "key 5 is not text", "quotes"),
    (
        "num_layers: 2",
        'num_layers: "2"',
        "5:15",
        'model.num_layers is "2"; expected a whole number',
        "remove the quotes",
    ),
    ("num_layers: 2", "num_layers: 2.0", "5:15", "is 2.0; expected a whole number", "write 2"),
    ("num_layers: 2", "num_layers: [2]", "5:15", "is [2]; expected a whole number", None),
    ("num_layers: 2", "num_layers:", "5:14", "is null; expected a whole number", None),
    ("num_layers: 2", "num_layers: 2\n  head_dim: 32", "6:3", "unknown key model.head_dim", "a key of model.attention"),
    ("  num_layers: 2\n", "", "2:1", "model.num_layers is missing; expected a whole number from 1 to 1024", None),
    ("context: 64", "context: 20000000", "6:12", "model.context is 20000000; expected", None),
    ("hidden_size: 96", "hidden_size: 100", "4:16", "hidden_size 100 is not a multiple of 8", "nearest are 96 and 104"),
    ("hidden_size: 96", "hidden_size: 268435456", "3:15", "has more than 2^31 - 1 elements", None),
    (
        "intermediate_size: 160",
        "intermediate_size: 12",
        "14:24",
        "intermediate_size 12 is not a multiple of 8",
        "8 and",
    ),
    ("num_heads: 6", "num_heads: 5", "11:19", "5 is not a multiple of num_kv_heads 2", "can be 1, 5"),
    (HEAD_DIM, "    head_dim: 36\n", "12:15", "head_dim 36 is not a multiple of 8", "nearest are 32 and 40"),
    (HEAD_DIM, "    head_dim: 520\n", "12:15", "head_dim is 520; expected a whole number of at most 512", None),
    (
        HEAD_DIM,
        "",
        "9:3",
        "hidden_size 96 / num_heads 6 = 16; expected a multiple of 8 from 32 to 512",
        "give head_dim",
    ),
    (HEAD_DIM, "    sliding_window: 0\n", "12:21", "sliding_window is 0; expected a whole number of at least 1", None),
    (HEAD_DIM, HEAD_DIM + "    qkv_bias: 1\n", "13:15", "qkv_bias is 1; expected true or false", None),
    (
        ROPE,
        "rope: {fraction: 0.3}",
        "8:20",
        "head_dim 32 x fraction 0.3 = 9.6; expected an even",
        "fraction 0.3125 gives 10",
    ),
    (ROPE, "rope: {fraction: 0.28125}", "8:20", "= 9; expected an even whole number", "gives 8"),
    (ROPE, "rope: {fraction: 0.001}", "8:20", "expected an even whole number", "gives 2"),
    (ROPE, "rope: {theta: .inf}", "8:17", "model.rope.theta is inf; expected a finite number", None),
    (ROPE, "rope: {theta: true}", "8:17", "model.rope.theta is true; expected a number", None),
    (
        ROPE,
        "rope: {scaling: none}",
        "8:19",
        "expected a section with kind base, linear, llama3, longrope, none, yarn",
        "{kind: none}",
    ),
    (ROPE, "rope: {scaling: {factor: 2}}", "8:10", "scaling.kind is missing; expected one of", None),
    (ROPE, "rope: {scaling: {kind: lama3, factor: 2}}", "8:26", 'scaling.kind is "lama3"', 'mean "llama3"'),
    (ROPE, "rope: {scaling: {kind: llama3}}", "8:10", "rope.scaling.factor is missing; expected a number", None),
    (
        ROPE,
        "rope: {scaling: {kind: linear, factor: 0.5}}",
        "8:42",
        "factor is 0.5; expected a number of at least 1",
        None,
    ),
    (ROPE, "rope: {scaling: {kind: linear, facter: 2}}", "8:34", "model.rope.scaling.facter", 'mean "factor"'),
    (
        ROPE,
        "rope: {scaling: {kind: llama3, factor: 8, low_freq_factor: 5}}",
        "8:10",
        "high_freq_factor 4 must be at least low_freq_factor 5",
        "low_freq_factor 1",
    ),
    ("  norm: {eps: 1e-5}", "  norm: {eps: abc}", "7:15", 'norm.eps is "abc"; expected a number', None),
    ("  norm: {eps: 1e-5}", "  norm: {eps: 0}", "7:15", "norm.eps is 0; expected a number of at least 1e-20", None),
    ("  norm: {eps: 1e-5}", "  norm: {kind: lay}", "7:16", 'norm.kind is "lay"; expected one of rms, layer', "layer"),
    ("  norm: {eps: 1e-5}", "  norm:", "7:3", "model.norm is empty; expected a section with kind, eps", "indent"),
    ("  norm: {eps: 1e-5}", "  norm: rms", "7:9", 'model.norm is "rms"; expected a section with kind, eps', None),
    ("name: tiny", "name: 3.1", "1:7", "name is 3.1; expected text", "quotes"),
    ("name: tiny", 'name: ""', "1:7", 'name is ""; expected letters, digits', None),
    ("name: tiny", "name: a/b", "1:7", 'name is "a/b"; expected letters, digits', None),
    ("name: tiny\n", "", "1:1", "name is missing; expected text", None),
    ("prefill_chunk: 16", "prefil_chunk: 16", "18:1", "unknown key prefil_chunk", 'mean "prefill_chunk"'),
    ("prefill_chunk: 16", "zzz: 16", "18:1", "unknown key zzz", "keys here are name, model, cache"),
    ("prefill_chunk: 16", "<<: {a: 1}", "18:1", "unknown key <<", "merge keys are not supported"),
    (
        "prefill_chunk: 16",
        "prefill_chunk: 0",
        "18:16",
        "prefill_chunk is 0; expected a whole number of at least 1",
        None,
    ),
    ("prefill_chunk: 16", "x: &a [*a]", "18:4", "aliases expand", None),
    ("prefill_chunk: 16", "x: !!python/name:os.system", "18:4", "tag !!python/name:os.system is not supported", None),
    ("  num_layers: 2", "\tnum_layers: 2", "5:1", "not YAML: a tab", "use spaces"),
    ("  num_layers: 2", "   num_layers: 2", "5:4", "not YAML: num_layers is not allowed here", "indentation"),
    ("num_layers: 2", "num_layers 2", "5:3", "not YAML: a key without ':'", "key: value"),
    (
        "    intermediate_size: 160",
        "    intermediate_size: 160\n  tensor_names: lama",
        "15:17",
        '"lama"',
        'mean "llama"',
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{m[1][:30]!r}-{n}" for n, m in enumerate(MISTAKES)])
def test_mistake(mistake: tuple[str, str, str, str, str | None]) -> None:
    old, new, where, text, fix = mistake
    assert old in BASE
    with pytest.raises(SpecError) as caught:
        parse_spec(BASE.replace(old, new), "dir/spec.yaml")
    message = str(caught.value)
    first = next(line for line in message.splitlines() if text in line)
    assert first.startswith(f"dir/spec.yaml:{where}: "), message
    fixes = [line for line in message.splitlines() if line.startswith("  fix: ")]
    if fix is None:
        assert not any("did you mean" in line for line in fixes)
    else:
        assert any(fix in line for line in fixes), message
    for jargon in ("Input should", "pydantic", "https://", "literal_error", "discriminator", "Traceback", "_HeadDimOf"):
        assert jargon not in message


def test_all_mistakes_are_reported_in_the_order_of_the_file() -> None:
    text = BASE.replace("num_layers: 2", "num_layer: 2").replace("block_size: 8", "block_size: 0\n  block_size: 8")
    text = text.replace("intermediate_size: 160", "activation: silo")
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "s")
    heads = [line for line in str(caught.value).splitlines() if line.startswith("s:")]
    assert [head.split(": ")[0] for head in heads] == ["s:5:3", "s:13:3", "s:14:17", "s:16:15", "s:17:3"]
    assert "model.mlp.intermediate_size is missing" in heads[1]


def test_error_shows_the_line_with_a_caret() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(BASE.replace("block_size: 8", "block_size: 0"), "s")
    assert str(caught.value).splitlines() == [
        "s:16:15: cache.block_size is 0; expected a whole number of at least 1",
        "    16 |   block_size: 0",
        "       |               ^",
    ]


def test_a_misspelt_required_key_is_one_error() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(BASE.replace("num_kv_heads", "num_kv_head"), "s")
    assert str(caught.value).count("s:") == 1


def test_two_contradictions_of_one_section_are_both_reported() -> None:
    text = BASE.replace("num_heads: 6", "num_heads: 5").replace("head_dim: 32", "head_dim: 36")
    with pytest.raises(SpecError, match=r"(?s)s:11:19: .*s:12:15: "):
        parse_spec(text, "s")


def test_many_problems_are_cut() -> None:
    with pytest.raises(SpecError, match="and 480 more problems") as caught:
        parse_spec(BASE + "".join(f"k{i}: 1\n" for i in range(500)), "s")
    assert str(caught.value).count("unknown key") == 20


# a split over ranks, line:column, text in the message, fix
SPLITS = [
    ("parallel: {}", "19:11", "parallel: one rank", "give tensor or pipeline a number above 1"),
    ("parallel: {tensor: 0}", "19:20", "parallel.tensor is 0; expected a whole number of at least 1", ""),
    ("parallel: {tensor: two}", "19:20", 'parallel.tensor is "two"; expected a whole number', ""),
    ("parallel: {tensors: 2}", "19:12", "unknown key parallel.tensors", 'did you mean "tensor"?'),
    ("parallel: {tensor: 32, pipeline: 32}", "19:11", "tensor 32 x pipeline 32 is more than 256 ranks", ""),
    ("parallel: {pipeline: 3}", "19:22", "parallel.pipeline: pipeline has 3 stages, the model only 2 layers", ""),
    ("parallel: {pipeline: 2, layers: [2]}", "19:33", "layers has 1 numbers for 2 stages", "give one for each"),
    ("parallel: {pipeline: 2, layers: [2, 1]}", "19:33", "layers are 3 together, the model has 2", ""),
    ("parallel: {pipeline: 2, layers: [2, 0]}", "19:37", "parallel.layers.1 is 0; expected a whole number", ""),
    ("parallel: {tensor: 2, shares: [1]}", "19:31", "shares has 1 numbers for 2 ranks of a stage", "give one for each"),
    ("parallel: {pipeline: 2, shares: [0.5, 0.6]}", "19:33", "the sum of shares is 1.1", "fractions whose sum is 1"),
    ("parallel: {tensor: 2, shares: [1.0, 0]}", "19:37", "parallel.shares.1 is 0; expected a number", ""),
    ("parallel: {pipeline: 2, layers: [1, 1], shares: [0.5, 0.5]}", "19:49", "both divide the layers", "one of them"),
    ("parallel: {tensor: 2}\nmemory_budget: [1GiB]", "20:16", "1 numbers, but parallel has 2 ranks", "one for each"),
    ("parallel: {tensor: 2}\nadapters: {}", "20:11", "a model that is split has no adapters", "leave adapters out"),
    ("memory_budget: [1GiB, 2GiB]", "19:16", "2 numbers, but without parallel there is one machine", "one for each"),
    ("parallel: {tensor: 2}\nmemory_budget: [1GiB, much]", "20:23", 'memory_budget.1 is "much"; expected a size', ""),
    ("memory_budget: []", "19:16", "memory_budget has 0 items; expected at least 1", ""),
    ("memory_budget: 0", "19:16", "memory_budget is 0; expected a size of at least 1", ""),
    ("memory_budget: much", "19:16", 'is "much"; expected a size such as 512MiB, 8GiB or a number of bytes, or a', ""),
]


@pytest.mark.parametrize(("lines", "where", "text", "fix"), SPLITS, ids=[split[0] for split in SPLITS])
def test_mistakes_in_a_split_over_ranks(lines: str, where: str, text: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(BASE + lines + "\n", "s")
    first, *_ = str(caught.value).splitlines()
    assert first.startswith(f"s:{where}: ") and text in first, caught.value
    assert fix in str(caught.value)


def test_a_split_with_a_budget_for_each_rank() -> None:
    spec = parse_spec(BASE + "parallel: {tensor: 2}\nmemory_budget: [64GiB, 24GiB]\n")
    assert [spec.budget_of(rank) for rank in range(2)] == [64 << 30, 24 << 30]
    assert parse_spec(dump_spec(spec)) == spec


def test_a_model_that_makes_embeddings_has_no_adapters() -> None:
    with pytest.raises(SpecError, match=r"s:20:11: adapters: a model that makes embeddings has no adapters"):
        parse_spec(BASE + "output: hidden\nadapters: {}\n", "s")


def test_tied_embeddings_have_one_format() -> None:
    text = BASE.replace("num_layers: 2", "num_layers: 2\n  tie_embeddings: true") + "weights:\n  embedding: f16\n"
    with pytest.raises(SpecError, match=r"s:21:14: weights.embedding: tied.*f16 and output is bf16"):
        parse_spec(text, "s")
    assert parse_spec(text + "  output: f16\n").weights.of("output") == "f16"


def test_arena_without_a_size_is_bounded() -> None:
    assert parse_spec(BASE.replace("num_blocks: 9", "max_sequences: 65536")).cache.max_sequences == 65536
    text = BASE.replace("num_blocks: 9", "max_sequences: 65536").replace("context: 64", "context: 65536")
    with pytest.raises(SpecError, match=r"s:17:18: .*more than 2\^31 - 1 token slots"):
        parse_spec(text, "s")


def test_widest_activation_is_bounded() -> None:
    text = BASE.replace("intermediate_size: 160", "intermediate_size: 1048576")
    text = text.replace("prefill_chunk: 16", "prefill_chunk: 65536")
    with pytest.raises(SpecError, match=r"(?s)s:18:16: .*fix: use at most 1023"):
        parse_spec(text, "s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: empty"),
        ("# nothing\n", "1:1: empty"),
        ("- a\n- b\n", "1:1: a list at top level"),
        ("hello", "1:1: a single value at top level"),
        ("a: 1\n---\nb: 2\n", "2:1: not YAML: a second document"),
        ("a: *b\n", "1:4: not YAML: \\*b stands for a value that is named nowhere"),
        ('a: "\\UFFFFFFFF"\n', "not YAML: an escape that stands for no character"),
        ('a: "\\ud800"\n', "1:4: half of a surrogate pair"),
        ("a: 1\nb: \0\n", "2:4: character U\\+0000 cannot stand in YAML"),
        ("? [a, b]\n: c\n", "1:3: a key that is a list is not text"),
        ("[" * 1000, "levels deep"),
        ("a: [" + "x, " * 20000 + "]", "more than 10000 values"),
        ("a: " + "x" * 2**20, "larger than 1048576 bytes"),
        (
            "a: &a [x,x,x,x,x,x,x,x]\n"
            + "".join(f"{b}: &{b} [{','.join(['*' + a] * 8)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
            "aliases expand",
        ),
    ],
)
def test_text_that_is_no_spec(text: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        parse_spec(text)


def test_aliases_and_yaml_forms_of_numbers_are_read() -> None:
    text = BASE.replace("num_heads: 6", "num_heads: &n 6").replace("num_kv_heads: 2", "num_kv_heads: *n")
    text = text.replace("context: 64", "context: 0x40").replace("vocab_size: 100", "vocab_size: 1_000")
    spec = parse_spec("\ufeff" + text.replace("theta: 10000.0", "theta: 1.5E4").replace("\n", "\r\n"))
    assert (spec.model.attention.num_kv_heads, spec.model.context, spec.model.vocab_size) == (6, 64, 1000)
    assert (spec.model.norm.eps, spec.model.rope.theta) == (1e-5, 15000.0)


@pytest.mark.parametrize(
    ("text", "size"), [("1MiB", 2**20), ("1.5GiB", 3 * 2**29), ('"8 GB"', 8 * 10**9), ("70000", 70000), ("1e9", 10**9)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_spec(BASE + f"memory_budget: {text}\n").memory_budget == size


def test_head_dim_defaults_to_the_share_of_a_head() -> None:
    spec = parse_spec(BASE.replace(HEAD_DIM, "").replace("num_heads: 6", "num_heads: 2"))
    assert spec.model.attention.head_dim == 48
    assert "head_dim: 48" in dump_spec(spec)
    with pytest.raises(SpecError, match=r"s:9:3: .*96 / num_heads 7 is not a whole number"):
        parse_spec(BASE.replace(HEAD_DIM, "").replace("num_heads: 6", "num_heads: 7"), "s")


def test_no_second_error_when_head_dim_cannot_be_derived() -> None:
    with pytest.raises(SpecError, match="num_heads is -1") as caught:
        parse_spec(BASE.replace(HEAD_DIM, "").replace("num_heads: 6", "num_heads: -1"))
    assert "head_dim" not in str(caught.value)


def test_a_window_wider_than_the_context_is_accepted() -> None:
    spec = parse_spec(BASE.replace(HEAD_DIM, HEAD_DIM + "    sliding_window: 4096\n"))
    assert spec.model.attention.sliding_window == 4096


def test_rotary_dim_of_an_inexact_fraction() -> None:
    spec = parse_spec(BASE.replace(HEAD_DIM, "    head_dim: 200\n").replace(ROPE, "rope: {fraction: 0.29}"))
    assert 200 * 0.29 < 58  # the float product is just under the whole number
    assert spec.model.rotary_dim == 58


@pytest.mark.parametrize("name", ["tiny", "1e5", "12", "true", "null", "0x1F", "1_0", "1.5", "on", "1e-5"])
def test_dump_reads_back_equal(name: str) -> None:
    spec = parse_spec(BASE.replace("name: tiny", f"name: {json.dumps(name)}"))
    assert spec.name == name
    text = dump_spec(spec)
    assert parse_spec(text) == spec
    assert dump_spec(parse_spec(text)) == text


def test_load_errors_name_the_file(tmp_path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        load_spec(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        load_spec(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec("a\0b")
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: x\nmodel: \xe9\n")
    with pytest.raises(SpecError, match=r"latin.yaml:2:8: byte 0xe9 is not UTF-8"):
        load_spec(path)
    path.write_bytes(BASE.encode("utf-16"))
    with pytest.raises(SpecError, match="is not UTF-8"):
        load_spec(path)
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(SpecError, match="larger than"):
        load_spec(path)
    path.write_text(BASE)
    assert load_spec(path) == parse_spec(BASE)
