// logits_4701fdfe
// small spec of a test
//
// Projection of one row: out = rms_norm(x[rows]) @ weight.T.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns 4 at a time, so each
// load is 16 bytes and neighbouring lanes read neighbouring bytes.
// The norm costs no pass of its own: lanes add up x^2 in the same loop, and 1/rms scales the finished dot products.
// Grid: ceil(61 / 8) threadgroups of 2 simdgroups.
//   x          [tokens, 48] f32
//   weight     [61, 48] f32
//   norm       [48] f32
//   rows       [rows] i32
//   out        [rows, 61] f32
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
[[kernel]] void logits_4701fdfe(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device int32_t* rows [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  if (first >= 61u) {
    return;
  }
  const device float* input = x + (ulong)rows[0] * 48u;
  const device float* w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = min(first + r, 60u);
    w[r] = weight + (ulong)row * 48u;
  }
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  float4 squares = float4(0.0f);
  for (uint i = lane * 4u; i < 48u; i += 128u) {
    float4 v[1];
    load_f32_4(input + i, v);
    float4 n[1];
    load_f32_4(norm + i, n);
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      squares += v[j] * v[j];
      v[j] *= n[j];
    }
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
  const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.020833334f + 9.99999975e-06f);
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < 61u) {
    const ulong place = o;
    y *= scale;
    out[place] = (float)y;
  }
}
