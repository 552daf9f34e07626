// o_306ea12d
// small spec of a test
//
// Projection of one row: out = residual + 0.5 * (x @ weight.T).
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// Grid: 6 threadgroups of 2 simdgroups.
//   x          [tokens, 240] f32
//   weight     [48, 240] f32
//   residual   [tokens, 48] f32
//   out        [tokens, 48] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
#endif
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }


// ---- kernel
[[kernel]] void o_306ea12d(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* residual [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 48u;

  if (first >= end) {
    return;
  }
  const device float* input = x;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }

  float of_residual = 0.0f;
  Row_f32 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_f32{weight + (ulong)row * 240u};
  }
  for (uint piece = lane; piece < 60u; piece += 32) {
    const uint column = piece * 4u;
    Raw_f32 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_f32(w[r], piece);
    }
    MLXR_AWAIT_INPUTS()
    if (piece == lane) {
      of_residual = (float)residual[min(first + lane, end - 1)];
    }
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      load_f32_4(input + column + run * 4u, v);

#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[1];
        codes_f32(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < end) {
    const ulong place = o;
    y = of_residual + 0.5f * y;
    out[place] = (float)y;
  }
}
