// head_product_ae2fe7a2
// small spec of a test
//
// Products of each head with a matrix of its own: out[h] = x[h] @ weight[h].T.
// As the one-row projection, with the rows of one head.
// Grid: (4, tokens * 6) threadgroups of 2 simdgroups.
//   x          [tokens, 432] bf16
//   weight     [192, 72] bf16
//   out        [tokens, 6, 32] bf16
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

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }



// ---- kernel
[[kernel]] void head_product_ae2fe7a2(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  device bfloat16_t* out [[buffer(2)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.y / 6u;
  const uint head = threadgroup_position_in_grid.y % 6u;
  const device bfloat16_t* input = x + (ulong)t * 432u + head * 72u;
  device bfloat16_t* target = out + (ulong)threadgroup_position_in_grid.y * 32u;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 32u;

  if (first >= end) {
    return;
  }
  const uint head_row = head * 32u;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{weight + (ulong)row * 72u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 8u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 9u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      load_bf16_8(input + column + run * 8u, v);

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
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < end) {
    target[o] = (bfloat16_t)y;
  }
}
