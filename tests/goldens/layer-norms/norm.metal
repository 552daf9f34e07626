// norm_7e9349d1
// small spec of a test
//
// LayerNorm of a row, added to the residual.
// x is read once: a lane holds its 4 elements in registers.
// Grid: (1, tokens) threadgroups of 1 simdgroup.
//   x          [tokens, 48] f32
//   weight     [48] f32
//   bias       [48] f32
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
[[kernel]] void norm_7e9349d1(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* bias [[buffer(2)]],
  const device float* residual [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const ulong row = (ulong)threadgroup_position_in_grid.y * 48u;
  const uint own = thread_index_in_threadgroup * 4u;
  float4 v[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < 48u) {
      load_f32_4(x + row + at, v + i);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    sum += sum4(v[i]);
  }
  sum = simd_sum(sum);
  const float mean = sum * 0.020833334f;
  // The mean is subtracted first: with a large mean, a sum of squares less the squared mean would cancel.
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    v[i] = own + i * 128u < 48u ? v[i] - mean : float4(0.0f);
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
    float4 b;
    load_f32_4(bias + at, &b);
    y += b;
    float4 r;
    load_f32_4(residual + row + at, &r);
    y = r + y * 0.5f;
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      out[row + at + j] = (float)y[j];
    }
  }
}
