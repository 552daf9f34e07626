// qk_mean_squares_3be4edde
// small spec of a test
//
// This rank's part of the mean squares of 240 columns of queries and 80 of keys.
// Grid: (2, tokens) threadgroups of 1 simdgroup: one for the queries of a token, one for its keys.
//   qkv        [tokens, 200] bf16: 3 query, 1 key, 1 value heads of 40
//   out        [tokens, 2] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void qk_mean_squares_3be4edde(
  const device bfloat16_t* qkv [[buffer(0)]],
  device float* out [[buffer(1)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const bool is_query = threadgroup_position_in_grid.x == 0;
  const uint elements = is_query ? 120u : 40u;
  const ulong first = (ulong)threadgroup_position_in_grid.y * 200u + (is_query ? 0u : 120u);
  float squares = 0.0f;
  for (uint at = thread_index_in_threadgroup * 4u; at < elements; at += 128u) {
    float4 v;
    load_bf16_4(qkv + first + at, &v);
    squares += sum4(v * v);
  }
  squares = simd_sum(squares);
  if (thread_index_in_threadgroup == 0) {
    const float inverse = is_query ? 0.00416666688f : 0.0125000002f;
    out[(ulong)threadgroup_position_in_grid.y * 2u + threadgroup_position_in_grid.x] = squares * inverse;
  }
}
