// normalise_269c981a
// small spec of a test
//
// RMSNorm of a row.
// x is read once: a lane holds its 8 elements in registers.
// Grid: (1, tokens) threadgroups of 1 simdgroup.
//   x          [tokens, 256] bf16
//   weight     [256] f32
//   out        [tokens, 256] bf16
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
[[kernel]] void normalise_269c981a(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  device bfloat16_t* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const ulong row = (ulong)threadgroup_position_in_grid.y * 256u;
  const uint own = thread_index_in_threadgroup * 4u;
  float4 weights[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const uint at = own + i * 128u;
    load_f32_4(weight + at, weights + i);
  }
  MLXR_AWAIT_INPUTS()
  float4 v[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const uint at = own + i * 128u;
    load_bf16_4(x + row + at, v + i);
  }
  float squares = 0.0f;
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    squares += sum4(v[i] * v[i]);
  }
  squares = simd_sum(squares);
  const float factor = metal::precise::rsqrt(squares * 0.00390625f + 9.99999975e-06f);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    const uint at = own + i * 128u;
    float4 y = v[i] * factor * weights[i];
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      out[row + at + j] = (bfloat16_t)y[j];
    }
  }
}
