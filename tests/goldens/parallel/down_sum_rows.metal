// down_sum_rows_0ac969d2
// small spec of a test
//
// Sum of two projections of several rows: out = x @ weight.T + residual, where to the product is added second_x @ second_weight.T + second_bias.
// As the one-row kernel, but a simdgroup keeps 4 weight rows times 8 input rows of sums, so that each
// weight is read once for 8 rows.
// Grid: (6, ceil(tokens / 8)) threadgroups of 2 simdgroups.
//   x          [tokens, 64] f32
//   weight     [48, 64] f32
//   residual   [tokens, 48] f32
//   out        [tokens, 48] f32
//   second_x   [tokens, 40] f32
//   second_weight [48, 40] f32
//   second_bias [48] f32
//   dims       [8] u32: tokens, seqs, rows, tiles
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
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }


// ---- kernel
[[kernel]] void down_sum_rows_0ac969d2(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* residual [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  const device float* second_x [[buffer(4)]],
  const device float* second_weight [[buffer(5)]],
  const device float* second_bias [[buffer(6)]],
  device float* out [[buffer(7)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 8u;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 48u;

  if (first >= end) {
    return;
  }
  float of_second;
  {
    // Tokens past the end repeat the last one and are not stored.
    const device float* input[8];
#pragma unroll
    for (uint t = 0; t < 8u; t++) {
      input[t] = second_x + (ulong)min(first_row + t, count - 1) * 40u;
    }
    float sums[8][4];
  #pragma unroll
    for (uint t = 0; t < 8u; t++) {
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        sums[t][r] = 0.0f;
      }
    }
    Row_f32 w[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint row = first + r;
      w[r] = Row_f32{second_weight + (ulong)row * 40u};
    }
    for (uint piece = lane; piece < 10u; piece += 32) {
      const uint column = piece * 4u;
      Raw_f32 raw[4];
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[r] = raw_f32(w[r], piece);
      }
  #pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 u[4][1];
  #pragma unroll
        for (uint r = 0; r < 4u; r++) {
          codes_f32(raw[r], run, u[r]);
        }
  #pragma unroll
        for (uint t = 0; t < 8u; t++) {
          float4 v[1];
          load_f32_4(input[t] + column + run * 4u, v);

  #pragma unroll
          for (uint r = 0; r < 4u; r++) {
  #pragma unroll
            for (uint j = 0; j < 1u; j++) {
              sums[t][r] += sum4(u[r][j] * v[j]);
            }
          }
        }
      }
    }
    // Lane t * 4 + r keeps output r of row t.
    float y = 0.0f;
  #pragma unroll
    for (uint t = 0; t < 8u; t++) {
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        const float total = simd_sum(sums[t][r]);
        y = lane == t * 4u + r ? total : y;
      }
    }
    const uint row = first_row + lane / 4u;
    const uint o = first + lane % 4u;
    of_second = y;
  }
    // Tokens past the end repeat the last one and are not stored.
    const device float* input[8];
#pragma unroll
    for (uint t = 0; t < 8u; t++) {
      input[t] = x + (ulong)min(first_row + t, count - 1) * 64u;
    }
  float sums[8][4];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[t][r] = 0.0f;
    }
  }
  Row_f32 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_f32{weight + (ulong)row * 64u};
  }
  for (uint piece = lane; piece < 16u; piece += 32) {
    const uint column = piece * 4u;
    Raw_f32 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_f32(w[r], piece);
    }
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 u[4][1];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        codes_f32(raw[r], run, u[r]);
      }
#pragma unroll
      for (uint t = 0; t < 8u; t++) {
        float4 v[1];
        load_f32_4(input[t] + column + run * 4u, v);

#pragma unroll
        for (uint r = 0; r < 4u; r++) {
#pragma unroll
          for (uint j = 0; j < 1u; j++) {
            sums[t][r] += sum4(u[r][j] * v[j]);
          }
        }
      }
    }
  }
  // Lane t * 4 + r keeps output r of row t.
  float y = 0.0f;
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const float total = simd_sum(sums[t][r]);
      y = lane == t * 4u + r ? total : y;
    }
  }
  const uint row = first_row + lane / 4u;
  const uint o = first + lane % 4u;
  y += of_second;
  if (lane < 32u && row < count && o < end) {
    y += (float)second_bias[o];
    const ulong place = (ulong)row * 48u + o;
    y += (float)residual[place];
    out[place] = (float)y;
  }
}
