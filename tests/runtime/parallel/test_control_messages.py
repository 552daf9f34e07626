"""Messages of the control channel: batches come out as they went in; what is no message gives an error, not a crash."""

import socket
import struct
import threading
import time
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.parallel.connection import Connection, ConnectionEndedError, MessageKind
from mlxr.runtime.parallel.handshake import StrangerError, check_proof, prove
from mlxr.runtime.parallel.step_message import StepLimits, pack_step, unpack_step
from mlxr_tests.hash_host import HashEngine

ARENA = HashEngine(64, 4, 4, context=64).geometry
LIMITS = StepLimits.of(16, 8, 4, ARENA)


def batch(*tokens: int) -> Batch:
    """A step of sequences of so many tokens, some of which have come before."""
    pager = Pager.from_geometry(ARENA)
    ids = [pager.add_sequence() for _ in tokens]
    pager.append_all([(i, 3 * i + 1) for i in ids])
    requests = [BatchRequest(i, range(1, 1 + n), 3 * i + 1) for i, n in zip(ids, tokens, strict=True)]
    return Batch.build(requests, pager, 4)


def no_ids(count: int) -> mx.array:
    """Of a step whose ids are known."""
    raise AssertionError(f"{count} ids are asked for")


def test_ids_that_are_still_computed_are_not_sent() -> None:
    whole, ids = batch(7, 1, 5), mx.arange(13, dtype=mx.int32)
    data = pack_step(replace(whole, tokens=ids), 4)
    assert len(data) == len(pack_step(whole, 4)) - 4 * 13
    after = unpack_step(data, LIMITS, lambda count: ids[:count])
    assert after.tokens.tolist() == list(range(13)) and after.slots.tolist() == whole.slots.tolist()


def test_a_batch_comes_out_as_it_went_in() -> None:
    states = np.array([[-1, 4, -1], [0, 1, 2], [5, 3, -1]], np.int32)
    of_states = LIMITS._replace(state_slots=6, state_columns=6)
    for before, limits in (
        (batch(1), LIMITS),
        (batch(1, 1, 1), LIMITS),
        (replace(batch(7, 1, 5), tops=40), LIMITS),
        (replace(batch(7, 1, 5), state_table=states), of_states),
    ):
        data = pack_step(before, 4)
        assert len(data) < 400
        after = unpack_step(bytearray(data), limits, no_ids)
        for name, value in vars(before).items():
            np.testing.assert_array_equal(getattr(after, name), value, err_msg=name)


def test_a_rank_has_query_tiles_of_its_own() -> None:
    whole = batch(7, 1, 5)
    after = unpack_step(pack_step(whole, 4), LIMITS._replace(query_tile=2), no_ids)
    assert after.query_tile == 2
    assert after.query_tiles.tolist() == [[0, 0], [0, 2], [0, 4], [0, 6], [1, 7], [2, 8], [2, 10], [2, 12]]


def test_states_are_those_of_the_model() -> None:
    states = np.array([[-1, 6]], np.int32)
    for batch_states, slots, error in (
        (states, 6, "state slots of a step are -1 to 6, expected -1 to 5"),
        (states, 0, "2 columns of states"),
        (None, 6, "0 columns of states"),
    ):
        data = pack_step(replace(batch(3), state_table=batch_states), 4)
        with pytest.raises(HostError, match=error):
            unpack_step(data, LIMITS._replace(state_slots=slots, state_columns=6), no_ids)


def test_layers_of_other_groups_have_blocks_of_their_own() -> None:
    arena = replace(ARENA, groups=(*ARENA.groups, replace(ARENA.groups[0], layers=(), num_blocks=70)))
    pager, limits = Pager.from_geometry(arena), StepLimits.of(16, 8, 4, arena)
    ids = [pager.add_sequence() for _ in range(2)]
    pager.others[0].pool.take()  # so that the groups' blocks differ
    before = Batch.build([BatchRequest(ids[0], range(7), 0), BatchRequest(ids[1], [5], 0)], pager, 4)
    data = pack_step(before, 4)
    assert len(data) <= limits.most_bytes
    ((slots, table),) = unpack_step(data, limits, no_ids).others
    assert slots.tolist() == before.others[0].slots.tolist() == [4, 5, 6, 7, 8, 9, 10, 12]
    assert table.tolist() == [[1, 2], [3, 0]] and before.block_tables.tolist() == [[0, 1], [2, 0]]
    for wrong in (LIMITS, limits._replace(other_blocks=(3,))):
        with pytest.raises(HostError):
            unpack_step(data, wrong, no_ids)
    with pytest.raises(HostError, match="group 2 of layers, expected 0 to 1"):
        limits.blocks_of(2)


@given(st.data())
def test_damaged_descriptors_are_refused(data: st.DataObject) -> None:
    whole = pack_step(batch(7, 1, 5), 4)
    numbers = np.frombuffer(whole, np.int32).copy()
    place = data.draw(st.integers(0, len(numbers) - 1))
    numbers[place] = data.draw(st.sampled_from([-1, 2**31 - 1, -(2**31), 10**6]))
    for damaged in (numbers.tobytes(), whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0\0\0\0"):
        if len(damaged) != len(whole) or place not in range(7, 7 + 13):  # any number may be a token's id
            with pytest.raises(HostError):
                unpack_step(damaged, LIMITS, lambda count: mx.zeros((count,), mx.int32))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n", "do not begin a message"),
        (struct.pack("<4sIQ", b"MLXR", 99, 0), "do not begin a message"),
        (struct.pack("<4sIQ", b"MLXR", MessageKind.STEP, 2**60), "expected at most 100"),
        (struct.pack("<4sIQ", b"MLXR", MessageKind.STEP, 50), None),
        (b"ML", None),
    ],
)
def test_nonsense_is_refused(data: bytes, error: str | None) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as sender:
        connection = Connection(listener.accept()[0], "rank 1")
        sender.sendall(data)
    with pytest.raises(HostError if error else ConnectionEndedError, match=error):
        connection.receive(100)
    connection.close()


def test_who_does_not_know_the_secret_is_a_stranger() -> None:
    for secrets in ((b"x" * 16, b"x" * 16), (b"x" * 16, b"y" * 16)):
        one, other = socket.socketpair()
        results: list[object] = []

        def listen(link: socket.socket = other, secret: bytes = secrets[1], told: list[object] = results) -> None:
            try:
                told.append(check_proof(link, secret))
            except StrangerError as error:
                told.append(error)
                link.close()

        thread = threading.Thread(target=listen)
        thread.start()
        if secrets[0] == secrets[1]:
            prove(one, secrets[0], 3, "heartbeat", time.monotonic() + 10)
        else:
            with pytest.raises(StrangerError):
                prove(one, secrets[0], 3, "heartbeat", time.monotonic() + 10)
        thread.join()
        one.close()
        other.close()
        assert results == [(3, "heartbeat")] if secrets[0] == secrets[1] else isinstance(results[0], StrangerError)
