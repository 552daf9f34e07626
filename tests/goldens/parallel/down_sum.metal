// down_sum_60bebf87
// small spec of a test
//
// Sum of two projections of one row: out = x @ weight.T + residual, where to the product is added second_x @ second_weight.T + second_bias.
// A simdgroup computes 4 rows of both weights; its lanes stride over the columns of one after those of the other.
// Grid: 6 threadgroups of 2 simdgroups.
//   x          [tokens, 64] f32
//   weight     [48, 64] f32
//   residual   [tokens, 48] f32
//   out        [tokens, 48] f32
//   second_x   [tokens, 40] f32
//   second_weight [48, 40] f32
//   second_bias [48] f32
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
[[kernel]] void down_sum_60bebf87(
  const device float* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* residual [[buffer(2)]],
  const device float* second_x [[buffer(3)]],
  const device float* second_weight [[buffer(4)]],
  const device float* second_bias [[buffer(5)]],
  device float* out [[buffer(6)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 48u;

  if (first >= end) {
    return;
  }
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }

  {
    const device float* input = x;
    Row_f32 w[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint row = first + r;
      w[r] = Row_f32{weight + (ulong)row * 64u};
    }
    // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
    Raw_f32 raws[1][4];
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 15u));
      }
    }
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint piece = lane + step * 32u;
      if (piece >= 16u) {
        break;
      }
      const thread Raw_f32* raw = raws[step];
      const uint column = piece * 4u;
  #pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 v[1];
        load_f32_4(input + column + run * 4u, v);

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
}
  {
    const device float* input = second_x;
    Row_f32 w[4];
  #pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint row = first + r;
      w[r] = Row_f32{second_weight + (ulong)row * 40u};
    }
    // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
    Raw_f32 raws[1][4];
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
  #pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 9u));
      }
    }
  #pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint piece = lane + step * 32u;
      if (piece >= 10u) {
        break;
      }
      const thread Raw_f32* raw = raws[step];
      const uint column = piece * 4u;
  #pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 v[1];
        load_f32_4(input + column + run * 4u, v);

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
}
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < end) {
    y += (float)second_bias[o];
    const ulong place = o;
    y += (float)residual[place];
    out[place] = (float)y;
  }
}
