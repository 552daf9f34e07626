"""Kernels give the right numbers: grids, types, conversions, simdgroup operations, threadgroup memory."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from mlxr.runtime.hosts.sim import build
from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def test_vector_add_over_several_threadgroups(run):
    x = np.random.default_rng(0).integers(-99, 99, 96).astype(np.float32)
    y = np.full(96, 2, dtype=np.float32)
    run("y[position.x] += x[position.x] * 3.0f;", x, y, groups=(3, 1, 1))
    np.testing.assert_array_equal(y, x * 3 + 2)


def test_grid_attributes():
    text = """
    [[kernel]] void grid(
        device uint* y [[buffer(0)]],
        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
        uint3 thread_ [[thread_position_in_threadgroup]], uint3 threads [[threads_per_threadgroup]],
        uint3 position [[thread_position_in_grid]], uint3 grid [[threads_per_grid]],
        uint index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
        uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]],
        uint width [[threads_per_simdgroup]], uint2 two [[thread_position_in_grid]]) {
      device uint* at = y + 16 * ((position.z * grid.y + position.y) * grid.x + position.x);
      at[0] = group.x + 10 * group.y + 100 * group.z;
      at[1] = groups.x + 10 * groups.y + 100 * groups.z;
      at[2] = thread_.x + 10 * thread_.y + 100 * thread_.z;
      at[3] = threads.x + 10 * threads.y + 100 * threads.z;
      at[4] = index; at[5] = lane; at[6] = simdgroup; at[7] = simdgroups; at[8] = width; at[9] = two.x + 100 * two.y;
    }"""
    groups, threads = (2, 3, 4), (5, 4, 3)
    x, y, z = (g * t for g, t in zip(groups, threads, strict=True))
    out = np.zeros((z, y, x, 16), dtype=np.uint32)
    SimKernel.load(text).launch([SimBuffer.of(out, writable=True)], groups, threads)
    pz, py, px = np.meshgrid(np.arange(z), np.arange(y), np.arange(x), indexing="ij")
    index = px % 5 + 5 * (py % 4) + 20 * (pz % 3)
    expected = [px // 5 + 10 * (py // 4) + 100 * (pz // 3), 432, px % 5 + 10 * (py % 4) + 100 * (pz % 3), 345]
    expected += [index, index % 32, index // 32, 2, 32, px + 100 * py]
    for i, value in enumerate(expected):
        np.testing.assert_array_equal(out[..., i], np.broadcast_to(value, out.shape[:-1]), err_msg=f"field {i}")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threads", [32, 7, 45, 128])
def test_simdgroup_reductions_of_full_and_partial_simdgroups(run, threads, seed):
    x = np.random.default_rng(1).integers(-50, 50, 128).astype(np.float32)
    y = np.zeros((128, 4), dtype=np.float32)
    body = """
      y[tid * 4] = simd_sum(x[tid]);
      y[tid * 4 + 1] = simd_max(x[tid]);
      y[tid * 4 + 2] = float(simd_min(int(x[tid])));
      y[tid * 4 + 3] = simd_prefix_exclusive_sum(x[tid]);"""
    run(body, x, y, threads=(threads, 1, 1), seed=seed)
    for start in range(0, threads, 32):
        part = x[start : min(start + 32, threads)]
        got = y[start : start + len(part)]
        np.testing.assert_array_equal(got[:, 0], part.sum())
        np.testing.assert_array_equal(got[:, 1], part.max())
        np.testing.assert_array_equal(got[:, 2], part.min())
        np.testing.assert_array_equal(got[:, 3], np.cumsum(part) - part)


def test_shuffles_votes_and_quads(run):
    x = np.arange(32, dtype=np.float32) + 1
    y = np.zeros((32, 12), dtype=np.float32)
    body = """
      device float* at = y + tid * 12;
      at[0] = simd_shuffle_xor(x[tid], 5);
      at[1] = simd_shuffle(x[tid], 31 - lane);
      at[2] = simd_shuffle_down(x[tid], 4);
      at[3] = simd_shuffle_up(x[tid], 3);
      at[4] = simd_broadcast(x[tid], 9);
      at[5] = simd_broadcast_first(x[tid]);
      at[6] = quad_sum(x[tid]);
      at[7] = simd_all(x[tid] > 0.0f) + 2 * simd_any(x[tid] > 32.0f) + 4 * simd_any(x[tid] == 32.0f);
      at[8] = float(ulong(simd_ballot(x[tid] < 4.0f)));
      at[9] = simd_is_first();
      const float2 pair = simd_shuffle_xor(float2(x[tid], -x[tid]), 1);
      at[10] = pair.x;
      at[11] = pair.y;"""
    run(body, x, y)
    lanes = np.arange(32)
    expected = [x[lanes ^ 5], x[::-1], np.where(lanes < 28, x[(lanes + 4) % 32], x)]
    expected += [np.where(lanes >= 3, x[lanes - 3], x), np.full(32, 10), np.full(32, 1)]
    expected += [x.reshape(8, 4).sum(1).repeat(4), np.full(32, 5), np.full(32, 7), lanes == 0]
    expected += [x[lanes ^ 1], -x[lanes ^ 1]]
    np.testing.assert_array_equal(y, np.stack(expected, axis=1).astype(np.float32))


@pytest.mark.parametrize("seed", range(4))
def test_transpose_through_threadgroup_memory(run, seed):
    x = np.random.default_rng(2).standard_normal((8, 24)).astype(np.float32)
    y = np.zeros((24, 8), dtype=np.float32)
    body = f"""
      MLXR_THREADGROUP(float, tile, 8 * 24);
      tile[tid] = x[tid];
      {BARRIER}
      y[tid] = tile[(tid % 8) * 24 + tid / 8];"""
    run(body, x, y, threads=(192, 1, 1), seed=seed)
    np.testing.assert_array_equal(y, x.T)


def test_threadgroup_memory_belongs_to_one_threadgroup(run):
    y = np.zeros(256, dtype=np.float32)
    body = f"""
      MLXR_THREADGROUP(float, sums, 2);
      const float sum = simd_sum(float(position.x));
      if (lane == 0) sums[simdgroup] = sum;
      {BARRIER}
      y[position.x] = sums[0] + sums[1];"""
    run(body, None, y, groups=(4, 1, 1), threads=(64, 1, 1))
    np.testing.assert_array_equal(y, np.arange(256).reshape(4, 64).sum(1).repeat(64))


def test_loop_with_barriers_keeps_simdgroups_in_step(run):
    y = np.zeros(128, dtype=np.float32)
    body = f"""
      MLXR_THREADGROUP(float, a, 128);
      MLXR_THREADGROUP(float, b, 128);
      a[tid] = float(tid);
      for (uint round = 0; round < 50; ++round) {{
        {BARRIER}
        b[tid] = a[(tid + 37) % 128];
        {BARRIER}
        a[tid] = b[tid];
      }}
      y[tid] = a[tid];"""
    run(body, None, y, threads=(128, 1, 1), seed=3)
    np.testing.assert_array_equal(y, (np.arange(128) + 37 * 50) % 128)


def test_sixteen_byte_loads_from_memory_that_is_aligned_to_eight(run):
    bytes_ = np.zeros(16 * 34, dtype=np.uint8)
    start = -bytes_.ctypes.data % 16 + 8
    x = bytes_[start : start + 16 * 32].view(np.float32)
    x[:] = np.random.default_rng(3).standard_normal(128)
    y = np.zeros(128, dtype=np.float32)
    body = """
      const uint4 raw = *(const device uint4*)(x + 4 * tid);
      const float4 v = as_type<float4>(raw);
      *(device float4*)(y + 4 * tid) = v.wzyx * float4(1.0f, float2(2.0f, 3.0f), 4.0f);"""
    aligned = np.zeros(132, dtype=np.float32)
    y = aligned[-aligned.ctypes.data % 16 // 4 :][:128]
    run(body, x, y)
    np.testing.assert_array_equal(y.reshape(32, 4), x.reshape(32, 4)[:, ::-1] * np.array([1, 2, 3, 4], np.float32))


@pytest.fixture(params=["this processor", "any processor"])
def processor(request, monkeypatch):
    """Conversions by this processor's instructions, and by our functions for one that has none."""
    if request.param == "any processor":
        plain = dataclasses.replace(build.find_toolchain(), machine=())
        monkeypatch.setattr(build, "find_toolchain", lambda: plain)


@pytest.mark.usefixtures("processor")
def test_bfloat_rounds_to_nearest_even_and_keeps_specials(run):
    x = np.random.default_rng(4).integers(0, 2**32, 1024, dtype=np.uint32).view(np.float32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.4028235e38]
    y = np.zeros(1024, dtype=np.uint16)
    run("y[position.x] = bfloat(x[position.x]);", x, y, output="bfloat", groups=(32, 1, 1))
    expected = np.array(mx.array(x).astype(mx.bfloat16).view(mx.uint16))
    nan = np.isnan(x)
    np.testing.assert_array_equal(y[~nan], expected[~nan])
    assert ((y[nan] & 0x7FFF) > 0x7F80).all()
    back = np.zeros(1024, dtype=np.float32)
    run("y[position.x] = float(x[position.x]);", y, back, input="bfloat16_t", groups=(32, 1, 1))
    np.testing.assert_array_equal(back.view(np.uint32), y.astype(np.uint32) << 16)


@pytest.mark.usefixtures("processor")
def test_half_conversions_both_ways(run):
    every = np.arange(65536, dtype=np.uint16)
    wide = np.zeros(65536, dtype=np.float32)
    run("y[position.x] = float(x[position.x]);", every, wide, input="half", groups=(64, 1, 1), threads=(1024, 1, 1))
    np.testing.assert_array_equal(wide, every.view(np.float16).astype(np.float32))
    random = np.random.default_rng(5)
    x = (random.standard_normal(1024) * 10 ** random.uniform(-9, 6, 1024)).astype(np.float32)
    x[:6] = [65519.0, 65520.0, 6e-8, 2.0**-25, 2049.0, 2051.0]
    narrow = np.zeros(1024, dtype=np.float16)
    run("y[position.x] = float16_t(x[position.x]);", x, narrow, output="half", groups=(32, 1, 1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(narrow, x.astype(np.float16))


def test_vector_constructors_and_conversions(run):
    y = np.zeros((32, 16), dtype=np.float32)
    body = """
      device float* at = y + tid * 16;
      const float2 a = float2(1.5f, 2.5f);
      const float4 b = float4(a, 3.5f, 4.5f), c = float4(int2(7, 8), half2(a));
      const int4 d = int4(b);
      const bfloat2 e = bfloat2(a);
      const uchar4 f = uchar4(1, 2, 3, 250);
      float4 g = 0;
      g.yz = float2(9.0f);
      at[0] = b.x; at[1] = b.w; at[2] = c.x; at[3] = c.y; at[4] = c.z; at[5] = c.w;
      at[6] = float(d.w); at[7] = float(e.y); at[8] = float(f.w); at[9] = g.x; at[10] = g.y; at[11] = g.w;
      at[12] = as_type<float>(0x40490fdbu); at[13] = float(as_type<half2>(0x3c004000u).x); at[14] = dot(b, g);
      at[15] = float(vec<float, 4>(2.0f).z);"""
    run(body, None, y)
    row = [1.5, 4.5, 7, 8, 1.5, 2.5, 4, 2.5, 250, 0, 9, 0, np.float32(np.pi), 2, 54, 2]
    np.testing.assert_array_equal(y, np.tile(np.array(row, dtype=np.float32), (32, 1)))


MATH = {
    "exp(v)": np.exp,
    "metal::precise::exp(v)": np.exp,
    "fast::exp(v)": np.exp,
    "exp2(v)": np.exp2,
    "log(v)": np.log,
    "log2(v)": np.log2,
    "sin(v)": np.sin,
    "metal::precise::cos(v)": np.cos,
    "tanh(v)": np.tanh,
    "sqrt(v)": np.sqrt,
    "rsqrt(v)": lambda v: 1 / np.sqrt(v),
    "pow(v, 1.7f)": lambda v: v**1.7,
    "floor(v) + ceil(v) + round(v)": lambda v: np.floor(v) + np.ceil(v) + np.floor(v + 0.5),
    "fma(v, 2.0f, 1.0f)": lambda v: v * 2 + 1,
    "clamp(v, 0.5f, 1.0f)": lambda v: np.clip(v, 0.5, 1),
    "select(1.0f, v, v > 1.0f)": lambda v: np.where(v > 1, v, 1),
    "max(v, 1.0f) - min(v, 1.0f)": lambda v: np.maximum(v, 1) - np.minimum(v, 1),
    "abs(v - 2.0f) + fract(v)": lambda v: np.abs(v - 2) + v % 1,
    "float4(v, v, v, v).x + exp(float2(v)).y": lambda v: v + np.exp(v),
    "float(max(half(v), half(1.0f)))": lambda v: np.maximum(v.astype(np.float16), 1),
    "v / 3.0": lambda v: v / 3,
    "isnan(v) ? 0.0f : metal::numeric_limits<float>::max()": lambda v: np.full_like(v, np.finfo(np.float32).max),
}


@pytest.mark.parametrize("expression", MATH)
def test_math(run, expression):
    x = np.random.default_rng(6).uniform(0.1, 3, 32).astype(np.float32)
    y = np.zeros(32, dtype=np.float32)
    run(f"const float v = x[tid]; y[tid] = {expression};", x, y)
    np.testing.assert_allclose(y, MATH[expression](x.astype(np.float64)), rtol=3e-6)


def test_program_scope_tables_templates_and_lambdas(run):
    head = (
        "constant float table[] = {2, 3, 5, 7}; constexpr constant int two = 2; "
        "template <typename T, int N> struct Row { "
        "T v[N]; T sum() const { T s = 0; for (int i = 0; i < N; ++i) s += v[i]; return s; } }; "
        "template <typename T> T twice(T x) { return T(two) * x; } "
        "float at(const constant float* p, uint i) { return p[i]; }"
    )
    body = """
      Row<float, 3> row;
      #pragma unroll
      for (int i = 0; i < 3; ++i) row.v[i] = x[tid] + i;
      auto shifted = [&](float by) { return row.sum() + by; };
      const constant float* p = table + (tid & 1);
      y[tid] = twice(shifted(table[tid & 3])) + at(p, 1);"""
    y = run(body, head=head)
    lanes = np.arange(32)
    table = np.array([2, 3, 5, 7])
    np.testing.assert_array_equal(y[:32], 2 * (3 * lanes + 3 + table[lanes & 3]) + table[(lanes & 1) + 1])


def test_constant_references_and_pointers():
    text = """
    [[kernel]] void scale(const constant float& factor [[buffer(0)]], const constant int* offsets [[buffer(1)]],
                          device float* y [[buffer(2)]], uint tid [[thread_index_in_threadgroup]]) {
      y[tid] = factor * float(offsets[tid]);
    }"""
    y = np.zeros(32, dtype=np.float32)
    arrays = [np.array([2.5], np.float32), np.arange(32, dtype=np.int32)]
    buffers = [*(SimBuffer.of(a, writable=False) for a in arrays), SimBuffer.of(y, writable=True)]
    SimKernel.load(text).launch(buffers, (1, 1, 1), (32, 1, 1))
    np.testing.assert_array_equal(y, np.arange(32) * 2.5)


def test_writes_through_a_const_cast_into_an_mlx_array_in_place(run):
    arena = mx.zeros((8, 8), dtype=mx.bfloat16)
    mx.eval(arena)
    kernel_body = "device bfloat* k = const_cast<device bfloat*>(x); k[2 * tid] = bfloat(float(tid)); y[tid] = 1.0f;"
    before = SimBuffer.of(arena, writable=True).address
    run(kernel_body, arena, input="bfloat", writable_input=True)
    assert SimBuffer.of(arena, writable=True).address == before
    expected = np.zeros(64, dtype=np.float32)
    expected[::2] = np.arange(32)
    np.testing.assert_array_equal(np.array(arena.astype(mx.float32)).reshape(-1), expected)


def test_a_grid_with_a_zero_launches_nothing(run):
    y = np.zeros(64, dtype=np.float32)
    run("y[tid] = 1.0f;", None, y, groups=(1, 0, 1))
    run("y[tid] = 1.0f;", None, y, threads=(0, 1, 1))
    assert not y.any()
