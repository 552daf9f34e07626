// gate_up_4c1c62e9
// small spec of a test
//
// Projection of one row: out = gelu_tanh(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// The norm costs no pass of its own: lanes add up x^2 in the same loop, and 1/rms scales the finished dot products.
// Grid: 10 threadgroups of 2 simdgroups.
//   x          [tokens, 48] f32
//   weight     [80, 48] f32
//   norm       [48] f32
//   out        [tokens, 40] f32
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
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }

inline float activate(float x) {
  return 0.5f * x * (1.0f + metal::precise::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}


// ---- kernel
[[kernel]] void gate_up_4c1c62e9(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 2u;
  const uint end = 40u;

  if (first >= end) {
    return;
  }
  const device float* input = x;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  float4 squares = float4(0.0f);

  Row_f32 w[4];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r;
    w[r] = Row_f32{weight + (ulong)row * 48u};
    w[2 + r] = Row_f32{weight + (ulong)(row + 40u) * 48u};
  }
  float4 norms[1][1];
#pragma unroll
  for (uint run = 0; run < 1u; run++) {
    const uint column = min(lane, 11u) * 4u;
    load_f32_4(norm + column + run * 4u, norms[run]);
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_f32 raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 11u));
    }
  }
  MLXR_AWAIT_INPUTS()
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 12u) {
      break;
    }
    const thread Raw_f32* raw = raws[step];
    const uint column = piece * 4u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      const thread float4* n = norms[run];
      load_f32_4(input + column + run * 4u, v);
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[1];
        codes_f32(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.020833334f + 9.99999975e-06f);
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
  float up = 0.0f;
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
    const float total_up = simd_sum(sum4(sums[2 + r]));
    up = lane == r ? total_up : up;
  }
  const uint o = first + lane;
  if (lane < 2u && o < end) {
    const ulong place = o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (float)y;
  }
}
