// o_bd0640a0
// small spec of a test
//
// Projection of one row: out = x @ weight.T + residual.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns 4 at a time, so each
// load is 16 bytes and neighbouring lanes read neighbouring bytes.
// Grid: ceil(48 / 8) threadgroups of 2 simdgroups.
//   x          [tokens, 64] f32
//   weight     [48, 64] f32
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
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void o_bd0640a0(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* residual [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  if (first >= 48u) {
    return;
  }
  const device float* input = x;
  const device float* w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = weight + (ulong)row * 64u;
  }
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  for (uint i = lane * 4u; i < 64u; i += 128u) {
    float4 v[1];
    load_f32_4(input + i, v);
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      float4 u[1];
      load_f32_4(w[r] + i, u);
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        sums[r] += u[j] * v[j];
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
  if (lane < 4u && o < 48u) {
    const ulong place = o;
    y += (float)residual[place];
    out[place] = (float)y;
  }
}
