"""Rows that a step kernel asks for launches ahead: when, where, and how many copies may still be on their way."""

import re

from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.rows_ahead import RowsOfFunction, rows_ahead
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_texts import text_of

QKV, ATTEND, OUT, GATE, DOWN, OTHER = range(6)
LAYER = (QKV, ATTEND, ATTEND, OUT, GATE, DOWN)
WITH_WEIGHTS = (0, 3, 4, 5)


def program(sizes, layers=2, most=1000):
    functions = [RowsOfFunction(*sizes.get(f, (10, 0))) for f in range(6)]
    launches = [f for layer in range(layers) for f in (*LAYER[:-1], OTHER if layer % 2 else DOWN)]
    weights = [6 * layer + i for layer in range(layers) for i in WITH_WEIGHTS]
    return rows_ahead(functions, launches, weights, 8, most)


def test_rows_are_asked_for_when_the_launch_before_the_last_one_ends():
    ahead = program({GATE: (300, 256), DOWN: (300, 256), OTHER: (300, 256)})
    # Gate and up after q/k/v, at attention; down after o, at gate and up.
    assert ahead.asks == {1: 4, 4: 5, 7: 10, 10: 11}
    # While gate and up await their rows, those of down have been asked for.
    assert ahead.newer == {GATE: 1, DOWN: 0, OTHER: 0}


def test_rows_have_places_of_their_own_while_others_run():
    ahead = program({GATE: (300, 256), DOWN: (300, 256), OTHER: (300, 256), QKV: (700, 0), ATTEND: (100, 0)})
    assert ahead.places[GATE] >= 100
    assert ahead.places[DOWN] >= ahead.places[GATE] + 256
    # Two downs are never there together; q/k/v runs when nothing is asked for.
    assert ahead.places[DOWN] == ahead.places[OTHER]
    assert ahead.bytes == max(700, ahead.places[DOWN] + 256)


def test_what_has_no_place_is_not_asked_for():
    ahead = program({GATE: (300, 256), DOWN: (300, 256), OTHER: (10, 0)}, most=500)
    assert len(ahead.places) == 1
    assert set(ahead.asks.values()) in ({4, 10}, {5})


def test_a_copy_is_awaited_where_some_layers_ask_for_nothing_more():
    """Of two kernels of down one asks, so that gate and up may not leave one copy on its way."""
    assert program({GATE: (300, 256), DOWN: (300, 256)}).newer[GATE] == 0


def test_the_first_launches_ask_for_themselves():
    ahead = program({QKV: (300, 256), OUT: (300, 256)})
    assert ahead.asks == {}
    assert ahead.bytes == 300


def test_a_step_asks_in_its_text():
    artifact = compiled(
        small_spec(
            model__hidden_size=1024,
            model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 128},
            model__mlp={"intermediate_size": 1024},
            weights={"default": "q4_k"},
            activation_dtype="bf16",
        ),
        Geometry.of(
            matvec_mma=2, matvec_outputs=16, matvec_simdgroups=8, matvec_split=8, matvec_threadgroups=20, partition=16
        ),
    )
    of_two = text_of(artifact, StepKernelSizes(256, blocks=2)).text  # blocks, which share a multiprocessor's memory
    assert "::ask(" not in of_two
    text = text_of(artifact, StepKernelSizes(256, blocks=1)).text
    asked = set(re.findall(r"case \d+: (\w+)::ask\(of_rows\); break;", text))
    assert {name.rpartition("_")[0].rpartition("_")[0] for name in asked} >= {"gate_up"}
    # A launch's row names the launch whose rows are asked for, plus 1.
    rows = re.findall(r"^    (\d+)u \| \du << 16 .*?, \d+u(?: \| (\d+)u << 16)?,$", text, re.MULTILINE)
    of = {int(number): name for number, name in re.findall(r"case (\d+): (\w+)::run", text)}
    assert {of[int(rows[int(ask) - 1][0])] for _, ask in rows if ask} == asked
    # What one function means by these names, the next one does not.
    assert text.count("#undef MLXR_ASKED") == text.count("inline void ask_rows(")
