// gated_norm_96f2f4b3
// small spec of a test
//
// RMSNorm(x) * silu(gate), of each of the 4 pieces of a row.
// x is read once: a lane holds its 4 elements in registers.
// Grid: (4, tokens) threadgroups of 1 simdgroup.
//   x          [tokens, 160] bf16
//   gate       [tokens, 424] bf16: from column 256 on
//   weight     [40] f32
//   out        [tokens, 160] bf16
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
inline float gate_of(float z) { return z / (1.0f + metal::precise::exp(-z)); }
// ---- kernel
[[kernel]] void gated_norm_96f2f4b3(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* gate [[buffer(1)]],
  const device float* weight [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint first = threadgroup_position_in_grid.x * 40u;
  const ulong row = (ulong)threadgroup_position_in_grid.y * 160u;
  const ulong gate_row = (ulong)threadgroup_position_in_grid.y * 424u + 256u;
  const uint own = thread_index_in_threadgroup * 4u;
  float4 v[1], z[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < 40u) {
      load_bf16_4(x + row + first + at, v + i);
      load_bf16_4(gate + gate_row + first + at, z + i);
      z[i] = float4(gate_of(z[i].x), gate_of(z[i].y), gate_of(z[i].z), gate_of(z[i].w));
    }
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
    float4 y = v[i] * factor;
    float4 w;
    load_f32_4(weight + at, &w);
    y *= w;
    y *= z[i];
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      out[row + first + at + j] = (bfloat16_t)y[j];
    }
  }
}
