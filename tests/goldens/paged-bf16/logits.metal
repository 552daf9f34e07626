// logits_8117fa6b
// small spec of a test
//
// Projection of one row: out = rms_norm(x[rows]) @ weight.T.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// The norm costs no pass of its own: lanes add up x^2 in the same loop, and 1/rms scales the finished dot products.
// Grid: 8 threadgroups of 2 simdgroups.
//   x          [tokens, 48] bf16
//   weight     [61, 48] bf16
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

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline void load_f32_8(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }


// ---- kernel
[[kernel]] void logits_8117fa6b(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device int32_t* rows [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 61u;

  if (first >= end) {
    return;
  }
  const uint row = (uint)rows[0];
  const device bfloat16_t* input = x + (ulong)row * 48u;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  float4 squares = float4(0.0f);

  Row_bf16 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = min(first + r, end - 1);
    w[r] = Row_bf16{weight + (ulong)row * 48u};
  }
  float4 norms[1][2];
#pragma unroll
  for (uint run = 0; run < 1u; run++) {
    const uint column = min(lane, 5u) * 8u;
    load_f32_8(norm + column + run * 8u, norms[run]);
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 5u));
    }
  }
  MLXR_AWAIT_INPUTS()
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 6u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      const thread float4* n = norms[run];
      load_bf16_8(input + column + run * 8u, v);
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[2];
        codes_bf16(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          sums[r] += c[j] * v[j];
        }
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
  if (lane < 4u && o < end) {
    const ulong place = o;
    y *= scale;
    out[place] = (float)y;
  }
}
