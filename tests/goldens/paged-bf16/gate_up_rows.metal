// gate_up_rows_751fbb38
// small spec of a test
//
// Projection of several rows: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// As the one-row kernel, but a simdgroup keeps 4 weight rows times 8 input rows of sums, so that each
// weight is read once for 8 rows.
// Grid: (22, ceil(tokens / 8)) threadgroups of 2 simdgroups.
//   x          [tokens, 48] bf16
//   weight     [176, 48] bf16
//   norm       [48] f32
//   out        [tokens, 88] bf16
//   dims       [8] u32: tokens, seqs, rows, tiles
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

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }


// ---- kernel
[[kernel]] void gate_up_rows_751fbb38(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 8u;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 2u;
  const uint end = 88u;

  if (first >= end) {
    return;
  }
  // Rows and outputs past the end repeat the last one and are not stored.
  const device bfloat16_t* input[8];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    const uint row = min(first_row + t, count - 1);
    input[t] = x + (ulong)row * 48u;
  }
  float sums[8][4];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[t][r] = 0.0f;
    }
  }
  float squares[8];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    squares[t] = 0.0f;
  }
  Row_bf16 w[4];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r;
    w[r] = Row_bf16{weight + (ulong)row * 48u};
    w[2 + r] = Row_bf16{weight + (ulong)(row + 88u) * 48u};
  }
  for (uint piece = lane; piece < 6u; piece += 32) {
    const uint column = piece * 8u;
    Raw_bf16 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_bf16(w[r], piece);
    }
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 n[2];
      load_f32_8(norm + column + run * 8u, n);

      float4 u[4][2];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        codes_bf16(raw[r], run, u[r]);
      }
#pragma unroll
      for (uint t = 0; t < 8u; t++) {
        float4 v[2];
        load_bf16_8(input[t] + column + run * 8u, v);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          squares[t] += sum4(v[j] * v[j]);
          v[j] *= n[j];
        }
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
#pragma unroll
          for (uint j = 0; j < 2u; j++) {
            sums[t][r] += sum4(u[r][j] * v[j]);
          }
        }
      }
    }
  }
  // Lane t * 2 + r keeps output r of row t.
  float y = 0.0f;
  float scale = 0.0f;
  float up = 0.0f;
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    const float mean = simd_sum(squares[t]) * 0.020833334f;
    scale = lane / 2u == t ? metal::precise::rsqrt(mean + 9.99999975e-06f) : scale;
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      const float total = simd_sum(sums[t][r]);
      y = lane == t * 2u + r ? total : y;
      const float total_up = simd_sum(sums[t][2u + r]);
      up = lane == t * 2u + r ? total_up : up;
    }
  }
  const uint row = first_row + lane / 2u;
  const uint o = first + lane % 2u;
  if (lane < 16u && row < count && o < end) {
    const ulong place = (ulong)row * 88u + o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (bfloat16_t)y;
  }
}
