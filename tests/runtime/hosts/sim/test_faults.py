"""Planted faults: each is caught when it happens, and the message says what, where and by which thread."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mlxr.compiler.errors import HostError, KernelFault
from mlxr.compiler.targets.metal.kernels.matmul_stream import MatmulStreamKernel
from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel
from mlxr.runtime.hosts.sim.toolchain import find_toolchain, private_checks

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
SIMDGROUP_BARRIER = "simdgroup_barrier(mem_flags::mem_threadgroup);"
SEEDS = range(6)


def exactly(count):
    """An array of this many floats."""
    return np.arange(count, dtype=np.float32)


DEVICE = {
    "one element past the end is read": ("y[tid] = x[tid + 1];", "read of 4 bytes at byte 128 of buffer 'x'"),
    "one element before the start is read": ("y[tid] = x[int(tid) - 1];", "read of 4 bytes at byte -4 of buffer 'x'"),
    "one element past the end is written": ("y[tid + 1] = 1.0f;", "write of 4 bytes at byte 128 of buffer 'y'"),
    "one element before the start is written": ("y[int(tid) - 1] = 1.0f;", "write of 4 bytes at byte -4 of buffer 'y'"),
    "the last 16 bytes reach past the end": (
        "if (tid == 8) y[0] = (*(const device float4*)(x + 4 * tid)).x;",
        "read of 16 bytes at byte 128 of buffer 'x'",
    ),
    "a struct reaches past the end": (
        "const Block block = *(const device Block*)(x + 28); y[tid] = block.a[tid & 7];",
        "read of .* bytes at byte 112 of buffer 'x'",
    ),
    "a byte is read past the end": (
        "y[tid] = float(((const device uchar*)x)[97 + tid]);",
        "read of 1 bytes at byte 128 of buffer 'x'",
    ),
    "a null pointer is read": (
        "const device float* p = nullptr; if (x[tid] < 0.0f) p = x; y[tid] = p[0];",
        "read of 4 bytes at address 0x0, which is in no buffer",
    ),
    "an input is written": ("const_cast<device float*>(x)[tid] = 1.0f;", "write to a read-only input.*buffer 'x'"),
    "16 bytes are read from an address that is not a multiple of 16": (
        "if (tid == 1) y[0] = (*(const device float4*)(x + tid)).x;",
        "misaligned read of 16 bytes at byte 4 of buffer 'x'",
    ),
}


@pytest.mark.parametrize("name", DEVICE)
def test_device_memory(run, name):
    body, message = DEVICE[name]
    with pytest.raises(KernelFault, match=message) as caught:
        run(body, exactly(32), exactly(32), head="struct Block { float a[8]; };")
    assert "kernel 'planted', line 13:" in str(caught.value)
    assert re.search(r"threadgroup \(0, 0, 0\), thread \(\d+, 0, 0\)$", str(caught.value))


def test_a_bad_write_does_not_happen(run):
    memory = np.zeros(96, dtype=np.float32)
    with pytest.raises(KernelFault, match="at byte 128"):
        run("if (tid == 31) y[tid + 1] = 7.0f;", exactly(32), memory[32:64])
    assert not memory.any()


def test_position_of_the_faulting_thread(run):
    with pytest.raises(KernelFault, match=r"threadgroup \(1, 1, 0\), thread \(1, 3, 0\)"):
        run("if (position.x == 5 && position.y == 7) y[99] = x[0];", groups=(2, 2, 1), threads=(4, 4, 1))


THREADGROUP = {
    "more than 32 KiB": (
        f"MLXR_THREADGROUP(float, a, 8193); a[tid] = 1; {BARRIER} y[tid] = a[tid];",
        "threadgroup memory is full: array 'a' needs 32772 bytes, 0 of 32768 are in use",
    ),
    "more than 32 KiB in two arrays": (
        f"MLXR_THREADGROUP(float, a, 4096); MLXR_THREADGROUP(float, b, 4097); a[tid] = b[tid] = 1; {BARRIER}",
        "array 'b' needs 16388 bytes, 16384 of 32768 are in use",
    ),
    "read before written": (
        f"MLXR_THREADGROUP(float, a, 64); a[tid] = 1; {BARRIER} y[tid] = a[tid + 32];",
        r"threadgroup array 'a' \(256 bytes\), which no thread of this threadgroup has written yet",
    ),
    "read past the end": (
        f"MLXR_THREADGROUP(float, a, 32); a[tid] = 1; {BARRIER} y[tid] = a[tid + 1];",
        "read of 4 bytes at byte 128 of threadgroup array 'a'",
    ),
    "written before the start": (
        "MLXR_THREADGROUP(float, a, 32); a[int(tid) - 1] = 1;",
        "write of 4 bytes at byte -4 of threadgroup array 'a'",
    ),
    "misaligned": (
        f"MLXR_THREADGROUP(float, a, 64); a[tid] = a[tid + 32] = 1; {BARRIER} "
        "y[tid] = (*(threadgroup float4*)(a + 1)).x;",
        "misaligned read of 16 bytes at byte 4 of threadgroup array 'a'",
    ),
}


@pytest.mark.parametrize("name", THREADGROUP)
def test_threadgroup_memory(run, name):
    body, message = THREADGROUP[name]
    with pytest.raises(KernelFault, match=message):
        run(body)


def test_kernels_that_copy_ahead_have_more_memory(run):
    most = MatmulStreamKernel.most_bytes // 4
    run(f"/* MLXR_COPY_AHEAD */ MLXR_THREADGROUP(float, a, {most}); a[tid] = 1; y[tid] = a[tid];")
    with pytest.raises(KernelFault, match=f"array 'a' needs {4 * most + 4} bytes, 0 of {4 * most} are in use"):
        run(f"/* MLXR_COPY_AHEAD */ MLXR_THREADGROUP(float, a, {most + 1}); a[tid] = 1;")


def test_all_of_threadgroup_memory_may_be_used(run):
    y = run(f"MLXR_THREADGROUP(float, a, 8192); a[8191 - tid] = 2; {BARRIER} y[tid] = a[8160 + tid];")
    assert (y[:32] == 2).all()


def test_threadgroup_memory_does_not_keep_values_of_the_last_threadgroup(run, monkeypatch):
    monkeypatch.setenv("MLXR_SIM_THREADS", "1")
    body = f"MLXR_THREADGROUP(float, a, 32); if (group.x == 0) a[tid] = 1; {BARRIER} y[tid] = a[tid];"
    with pytest.raises(KernelFault, match="has written yet"):
        run(body, groups=(4, 1, 1))


DIVERGENT = {
    "a barrier only some lanes reach": (f"if (tid < 16) {BARRIER}", "threadgroup_barrier .*has returned"),
    "a barrier only some simdgroups reach": (f"if (simdgroup == 1) {BARRIER}", "threadgroup_barrier .*has returned"),
    "a barrier after a thread has returned": (
        f"if (tid == 40) return; {BARRIER}",
        "threadgroup_barrier .*has returned",
    ),
    "two barriers, one for each simdgroup": (
        f"if (simdgroup == 0) {{ {BARRIER} }} else {{ {BARRIER} }}",
        "divergent threadgroup_barrier .* waits at threadgroup_barrier",
    ),
    "a barrier for some lanes, a simdgroup operation for the others": (
        f"if (lane < 9) {BARRIER} else y[tid] = simd_sum(1.0f);",
        "divergent (threadgroup_barrier .* waits at simd_sum|simd_sum .* waits at threadgroup_barrier)",
    ),
    "a different number of barriers": (
        f"for (uint i = 0; i < 2 + simdgroup; ++i) {BARRIER}",
        "threadgroup_barrier .*has returned",
    ),
    "a simdgroup operation only some lanes reach": (
        "if (lane < 16) y[tid] = simd_sum(1.0f);",
        "simd_sum .*has returned",
    ),
    "the same operation in two places": (
        "if (lane < 16) y[tid] = simd_max(1.0f); else y[tid] = simd_max(2.0f);",
        "divergent simd_max .* waits at simd_max",
    ),
    "a simdgroup barrier only some lanes reach": (
        f"if (lane != 3) {SIMDGROUP_BARRIER}",
        "simdgroup_barrier .*returned",
    ),
    "a broadcast from different lanes": (
        "y[tid] = simd_broadcast(x[tid], lane & 1);",
        "simd_broadcast .*every lane must name the same",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DIVERGENT)
def test_divergence(run, name, seed):
    body, message = DIVERGENT[name]
    with pytest.raises(KernelFault, match=message) as caught:
        run(body, threads=(64, 1, 1), seed=seed)
    assert "line 13" in str(caught.value)


RACES = {
    "no barrier after the write": f"a[tid] = 1; {BARRIER} a[tid] = 2; y[tid] = a[63 - tid];",
    "no barrier before the next write": f"a[tid] = 1; {BARRIER} y[tid] = a[63 - tid]; a[tid] = 2;",
    "all threads write one element": "a[0] = float(tid);",
    "only a simdgroup barrier between simdgroups": (
        f"a[tid] = 1; {BARRIER} a[tid] = 2; {SIMDGROUP_BARRIER} y[tid] = a[63 - tid];"
    ),
    "no simdgroup barrier between lanes": f"a[tid] = 1; {BARRIER} a[tid] = 2; y[tid] = a[tid ^ 1];",
    "a simdgroup operation orders no memory": (
        f"a[tid] = 1; {BARRIER} a[tid] = 2; const float s = simd_sum(1.0f); y[tid] = s + a[tid ^ 1];"
    ),
    "the barrier orders only device memory": (
        f"a[tid] = 1; {BARRIER} a[tid] = 2; threadgroup_barrier(mem_flags::mem_device); y[tid] = a[63 - tid];"
    ),
    "several readers before a write by one of them": (f"a[tid] = 1; {BARRIER} y[tid] = a[5]; if (tid == 5) a[5] = 2;"),
    "a simdgroup barrier of the reader alone": (
        f"a[tid] = 1; {BARRIER} if (simdgroup == 0) a[lane] = 2; else {{ {SIMDGROUP_BARRIER} y[tid] = a[lane]; }}"
    ),
    "readers of two simdgroups, of which one has a barrier before its write": (
        f"a[tid] = 1; {BARRIER} y[tid] = a[5]; {SIMDGROUP_BARRIER} if (tid == 5) a[5] = 2;"
    ),
    "two readers before a write by the first of them": (
        f"a[tid] = 1; {BARRIER} float s = tid == 5 ? a[5] : 0; s += simd_sum(s); if (tid == 6) s += a[5]; "
        "s += simd_sum(s); y[tid] = s; if (tid == 5) a[5] = 2;"
    ),
    "a wide write over a neighbour's element": (
        f"a[tid] = 1; {BARRIER} if (tid == 4) *(threadgroup float4*)(a + 4) = float4(1.0f); if (tid == 6) y[0] = a[6];"
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RACES)
def test_races_are_found_in_every_order(run, name, seed):
    with pytest.raises(KernelFault, match=r"race: (read|write) of .* of threadgroup array 'a'.* (wrote|read) with no"):
        run("MLXR_THREADGROUP(float, a, 64);" + RACES[name], threads=(64, 1, 1), seed=seed)


ORDERED = {
    "a simdgroup barrier between lanes": (
        f"a[tid] = 1; {SIMDGROUP_BARRIER} y[tid] = a[tid ^ 1]; {SIMDGROUP_BARRIER} a[tid] = 2;"
    ),
    "one thread's own accesses": "a[tid] = 1; a[tid] += 1; y[tid] = a[tid]; a[tid] = 3;",
    "barriers between rounds": (
        f"for (uint i = 0; i < 9; ++i) {{ a[(tid + i) % 64] = i; {BARRIER} y[tid] += a[(tid * 5) % 64]; {BARRIER} }}"
    ),
    "bytes of one word, with a barrier": (
        "threadgroup uchar* b = (threadgroup uchar*)a; "
        f"for (uint i = 0; i < 4; ++i) b[tid + 64 * i] = 1; {BARRIER} y[tid] = float(b[255 - tid]);"
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ORDERED)
def test_ordered_accesses_are_no_races(run, name, seed):
    run("MLXR_THREADGROUP(float, a, 64);" + ORDERED[name], threads=(64, 1, 1), seed=seed)


DEVICE_BARRIER = "threadgroup_barrier(mem_flags::mem_device);"
CONFLICTS = {
    "all threads write one element": "y[0] = float(tid);",
    "two threadgroups write one element": "y[tid] = 1.0f;",
    "a threadgroup reads what another writes": "if (group.x == 0) y[tid] = 1.0f; else if (y[tid] == 0.5f) y[64] = 1;",
    "a thread reads what another writes": "y[position.x] = 1.0f; if (y[position.x ^ 32] == 0.5f) y[64] = 1;",
    "the barrier orders only threadgroup memory": (
        f"y[position.x] = 1.0f; {BARRIER} if (y[position.x ^ 32] == 0) y[64] = 1;"
    ),
    "a slot of an arena is written and read": (
        "const_cast<device float*>(x)[position.x] = 1.0f; if (x[(position.x + 64) & 127] == 0.5f) y[64] = 1;"
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts_between_threads_in_device_memory(run, name):
    conflicts = 0
    for seed in SEEDS:
        try:
            run(
                CONFLICTS[name],
                exactly(128),
                exactly(128),
                groups=(2, 1, 1),
                threads=(64, 1, 1),
                writable_input=True,
                seed=seed,
            )
        except KernelFault as fault:
            conflicts += 1
            assert re.search(r"conflict: .* which thread .* of threadgroup .* wrote in this launch", str(fault))
    # Of a read and a write only the order in which the write comes first shows.
    assert conflicts == len(SEEDS) if "reads what another" not in name else conflicts > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_ordered_accesses_to_device_memory_are_no_conflicts(run, seed):
    body = f"""
      y[position.x] = 1.0f;
      y[position.x] += 1.0f;
      {DEVICE_BARRIER}
      const float other = y[position.x ^ 63];
      {DEVICE_BARRIER}
      y[position.x] = other + y[position.x];
      simdgroup_barrier(mem_flags::mem_device);
      y[position.x ^ 1] += 1.0f;"""
    for _ in range(3):
        y = run(body, None, exactly(128), groups=(2, 1, 1), threads=(64, 1, 1), seed=seed)
        assert (y == 5).all()


def test_threads_that_write_the_same_byte(run):
    y = np.zeros(64, dtype=np.uint8)
    for byte in (6, 7):
        with pytest.raises(KernelFault, match=f"conflict: write of 1 bytes at byte {byte} of buffer 'y'"):
            run(f"y[{byte}] = uchar(tid);", None, y, output="uchar")


def test_neighbouring_bytes_are_no_conflict(run):
    y = np.zeros(64, dtype=np.uint8)
    run("y[position.x] = 7; y[position.x] += 1;", None, y, output="uchar", groups=(64, 1, 1), threads=(1, 1, 1))
    assert (y == 8).all()


def test_neighbouring_halves_are_no_conflict(run):
    y = np.zeros(64, dtype=np.uint16)
    run("y[position.x] = half(1.0f);", None, y, output="half", groups=(64, 1, 1), threads=(1, 1, 1))
    assert (y == 0x3C00).all()


def test_an_output_that_shares_memory_with_an_input(run):
    memory = exactly(64)
    with pytest.raises(KernelFault, match=r"buffer 'y' .* is written and shares memory with buffer 'x'"):
        run("y[tid] = x[tid];", memory[:40], memory[32:])


VALUES = {
    "a private array's index": ("float a[4] = {1, 2, 3, 4}; y[tid] = a[tid];", "index .* of an array of known length"),
    "a constant table's index": ("y[tid] = table[tid];", "index .* of an array of known length"),
    "division by zero": ("y[tid] = float(int(tid) / int(x[0]));", "integer division by zero"),
}


@pytest.mark.parametrize("name", VALUES)
def test_indices_and_divisors(run, name):
    body, message = VALUES[name]
    with pytest.raises(KernelFault, match=message) as caught:
        run(body, head="constant float table[4] = {1, 2, 3, 4};")
    assert "line 13" in str(caught.value)


PRIVATE = {
    "a pointer to an array is read": "thread float* p = t; y[tid] = p[tid];",
    "a pointer to an array is written": "thread float* p = t; p[tid] = 1.0f; y[tid] = t[tid & 3];",
    "a pointer into an array, backwards": "thread float* p = t + 2; y[tid] = p[-int(tid)];",
    "in an inlined function": "y[tid] = element(t, tid);",
    "far away": "thread float* p = t; y[tid] = p[tid * 100000000u];",
    "a vector reaches past the end": "y[tid] = (*(const thread float4*)(t + (tid & 3))).x;",
}


@pytest.mark.skipif(not private_checks(find_toolchain().clang), reason="this clang has no -fsanitize=local-bounds")
@pytest.mark.parametrize("name", PRIVATE)
def test_private_memory(run, name):
    body = "float t[4] = {x[0], x[1], x[2], x[3]}; " + PRIVATE[name]
    head = "inline float element(const thread float* p, uint i) { return p[i]; }"
    with pytest.raises(KernelFault, match="out of bounds: an access outside of a private array") as caught:
        run(body, head=head)
    assert re.search(rf"kernel 'planted', line {3 if 'inlined' in name else 13}:", str(caught.value))


def test_pointers_within_private_arrays(run):
    body = """
      float t[4] = {x[0], x[1], x[2], x[3]};
      thread float* p = t + 3;
      y[tid] = p[-int(tid & 3)] + element(t, tid & 3);"""
    head = "inline float element(const thread float* p, uint i) { return p[i]; }"
    np.testing.assert_array_equal(run(body, head=head)[:32], np.full(32, 3.0))


def test_a_fault_in_one_of_many_threadgroups_stops_the_launch_and_the_next_one_runs(run, monkeypatch):
    monkeypatch.setenv("MLXR_SIM_THREADS", "4")
    for _ in range(20):
        with pytest.raises(KernelFault, match=r"threadgroup \(77, 0, 0\)"):
            run("if (group.x == 77) y[64] = 1.0f; else (void)x[tid];", groups=(200, 1, 1), threads=(1, 1, 1))
        assert run("y[tid] = x[tid] + 1.0f;")[31] == 32


def test_launches_from_several_threads_of_python(run):
    def work(number):
        for _ in range(20):
            y = run("y[position.x] = x[0] + float(position.x);", exactly(1) + number, exactly(256), groups=(8, 1, 1))
            np.testing.assert_array_equal(y, np.arange(256) + number)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not let a forked child go on with threads")
def test_launches_go_on_in_a_forked_child(run, monkeypatch):
    monkeypatch.setenv("MLXR_SIM_THREADS", "3")
    body = "y[position.x] = x[position.x] + 1.0f;"
    run(body, exactly(256), exactly(256), groups=(8, 1, 1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            y = run(body, exactly(256), exactly(256), groups=(8, 1, 1))
            status = 0 if (y == np.arange(256) + 1).all() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_seed_draws_the_order_of_threads_and_threadgroups(run, monkeypatch):
    monkeypatch.setenv("MLXR_SIM_THREADS", "1")

    def first(seed):
        with pytest.raises(KernelFault) as caught:
            run("y[99] = 1.0f;", groups=(50, 1, 1), threads=(128, 1, 1), seed=seed)
        return tuple(map(int, re.findall(r"\((\d+), 0, 0\)", str(caught.value))))

    firsts = [first(seed) for seed in range(12)]
    assert firsts == [first(seed) for seed in range(12)]
    assert len({group for group, _ in firsts}) > 6
    assert len({thread // 32 for _, thread in firsts}) > 2
    assert len({thread % 32 for _, thread in firsts}) > 6


def test_wrong_buffers_and_grids():
    kernel = SimKernel.load(
        "[[kernel]] void two(const device float* a [[buffer(0)]], device float* b [[buffer(1)]]) {}"
    )
    array = exactly(8)
    one, readable = SimBuffer.of(array, writable=True), SimBuffer.of(array, writable=False)
    with pytest.raises(HostError, match=r"takes 2 buffers \(a, b\), got 1"):
        kernel.launch([one], (1, 1, 1), (1, 1, 1))
    with pytest.raises(HostError, match="writes to 'b', but its buffer is not writable"):
        kernel.launch([one, readable], (1, 1, 1), (1, 1, 1))
    with pytest.raises(HostError, match="at most 1024"):
        kernel.launch([one, one], (1, 1, 1), (32, 33, 1))
    with pytest.raises(HostError, match="not contiguous"):
        SimBuffer.of(np.zeros((4, 6))[:, ::2], writable=False)
    frozen = exactly(4)
    frozen.flags.writeable = False
    with pytest.raises(HostError, match="read-only"):
        SimBuffer.of(frozen, writable=True)


@pytest.mark.parametrize("value", ["0", "-1", "two", "", "257", "²"])
def test_malformed_number_of_threads(run, monkeypatch, value):
    monkeypatch.setenv("MLXR_SIM_THREADS", value)
    with pytest.raises(HostError, match="MLXR_SIM_THREADS="):
        run("y[tid] = 1.0f;")
