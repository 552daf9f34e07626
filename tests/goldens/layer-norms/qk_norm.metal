// qk_norm_403cb91a
// small spec of a test
//
// LayerNorm of the queries and keys of a packed projection, before RoPE; its values are copied.
// The queries of a token are one row, its keys another: a threadgroup takes one of them, or the values.
// Grid: (3, tokens) threadgroups of 1 simdgroup.
//   qkv        [tokens, 128] f32: 2 query, 1 key, 1 value heads of 32
//   q_norm     [64] f32
//   k_norm     [32] f32
//   out        [tokens, 128] f32
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
[[kernel]] void qk_norm_403cb91a(
  const device float* qkv [[buffer(0)]],
  const device float* q_norm [[buffer(1)]],
  const device float* k_norm [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint piece = threadgroup_position_in_grid.x;
  const bool is_query = piece == 0;
  const bool is_value = piece == 2;
  const uint first = is_query ? 0u : is_value ? 96u : 64u;
  const uint elements = is_query ? 64u : 32u;
  const float inverse = is_query ? 0.015625f : 0.03125f;
  const uint own = thread_index_in_threadgroup * 4u;
  const ulong row = (ulong)threadgroup_position_in_grid.y * 128u + first;
  float4 v[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < elements) {
      load_f32_4(qkv + row + at, v + i);
    }
  }
  if (is_value) {
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint at = own + i * 128u;
      if (at >= elements) {
        continue;
      }
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        out[row + at + j] = (float)v[i][j];
      }
    }
    return;
  }
  float sum = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    sum += sum4(v[i]);
  }
  sum = simd_sum(sum);
  const float mean = sum * inverse;
  // The mean is subtracted first: with a large mean, a sum of squares less the squared mean would cancel.
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    v[i] = own + i * 128u < elements ? v[i] - mean : float4(0.0f);
  }
  float squares = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    squares += sum4(v[i] * v[i]);
  }
  squares = simd_sum(squares);
  const float factor = metal::precise::rsqrt(squares * inverse + 9.99999975e-06f);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    if (at >= elements) {
      continue;
    }
    float4 w;
    float4 y = v[i] * factor;
    if (is_query) {
      load_f32_4(q_norm + at, &w);
      y *= w;
    } else {
      load_f32_4(k_norm + at, &w);
      y *= w;
    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      out[row + at + j] = (float)y[j];
    }
  }
}
