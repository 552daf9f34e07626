// hidden_5f78cc24
// small spec of a test
//
// RMSNorm of a row.
// x is read once: a lane holds its 4 elements in registers.
// Grid: (1, rows) threadgroups of 1 simdgroup.
//   x          [tokens, 48] bf16
//   weight     [48] f32
//   rows       [rows] i32
//   out        [rows, 48] f32
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
[[kernel]] void hidden_5f78cc24(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device int32_t* rows [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const ulong row = (ulong)(uint)rows[threadgroup_position_in_grid.y] * 48u;
  const ulong out_row = (ulong)threadgroup_position_in_grid.y * 48u;
  const uint own = thread_index_in_threadgroup * 4u;
  float4 v[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < 48u) {
      load_bf16_4(x + row + at, v + i);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    squares += sum4(v[i] * v[i]);
  }
  squares = simd_sum(squares);
  const float factor = metal::precise::rsqrt(squares * 0.020833334f + 9.99999975e-06f);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    if (at >= 48u) {
      continue;
    }
    float4 w;
    load_f32_4(weight + at, &w);
    float4 y = v[i] * factor * w;
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      out[out_row + at + j] = (float)y[j];
    }
  }
}
