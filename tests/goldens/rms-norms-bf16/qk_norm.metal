// qk_norm_3b7cbf6b
// small spec of a test
//
// RMSNorm of the queries and keys of a packed projection, before RoPE; its values are copied.
// A simdgroup takes a head; all heads share one weight.
// Grid: (ceil(10 heads / 8), tokens) threadgroups of 8 simdgroups.
//   qkv        [tokens, 400] bf16: 6 query, 2 key, 2 value heads of 40
//   q_norm     [40] f32
//   k_norm     [40] f32
//   out        [tokens, 400] bf16
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
[[kernel]] void qk_norm_3b7cbf6b(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device float* q_norm [[buffer(1)]],
  const device float* k_norm [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint head = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
  if (head >= 10u) {
    return;
  }
  const bool is_query = head < 6u;
  const bool is_value = head >= 8u;
  const uint first = head * 40u;
  const uint own = thread_index_in_simdgroup * 4u;
  const ulong row = (ulong)threadgroup_position_in_grid.y * 400u + first;
  float4 v[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < 40u) {
      load_bf16_4(qkv + row + at, v + i);
    }
  }
  if (is_value) {
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint at = own + i * 128u;
      if (at >= 40u) {
        continue;
      }
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        out[row + at + j] = (bfloat16_t)v[i][j];
      }
    }
    return;
  }
  float squares = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    squares += sum4(v[i] * v[i]);
  }
  squares = simd_sum(squares);
  const float factor = metal::precise::rsqrt(squares * 0.0250000004f + 9.99999975e-06f);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    if (at >= 40u) {
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
