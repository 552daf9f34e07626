// qk_norm_a7be1b13
// small spec of a test
//
// RMSNorm of the queries and keys of a packed projection, before RoPE; its values are copied.
// The queries of a token are one row, its keys another: a threadgroup takes one of them, or the values.
// These are some columns of the rows that are normalised; the mean squares are those of all ranks' columns.
// Grid: (3, tokens) threadgroups of 1 simdgroup.
//   qkv        [tokens, 200] bf16: 3 query, 1 key, 1 value heads of 40
//   q_norm     [120] f32
//   k_norm     [40] f32
//   mean_squares [tokens, 2] f32
//   out        [tokens, 200] bf16
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

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void qk_norm_a7be1b13(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device float* q_norm [[buffer(1)]],
  const device float* k_norm [[buffer(2)]],
  const device float* mean_squares [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint piece = threadgroup_position_in_grid.x;
  const bool is_query = piece == 0;
  const bool is_value = piece == 2;
  const uint first = is_query ? 0u : is_value ? 160u : 120u;
  const uint elements = is_query ? 120u : 40u;
  const uint own = thread_index_in_threadgroup * 4u;
  const ulong row = (ulong)threadgroup_position_in_grid.y * 200u + first;
  float4 v[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < elements) {
      load_bf16_4(qkv + row + at, v + i);
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
        out[row + at + j] = (bfloat16_t)v[i][j];
      }
    }
    return;
  }
  const float mean_square = mean_squares[(ulong)threadgroup_position_in_grid.y * 2u + threadgroup_position_in_grid.x];
  const float factor = metal::precise::rsqrt(mean_square + 9.99999975e-06f);
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
      out[row + at + j] = (bfloat16_t)y[j];
    }
  }
}
