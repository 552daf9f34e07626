// latent_queries_6b82c8c5
// small spec of a test
//
// Products of each head with a matrix of its own: out[h] = [x[h] @ weight[h].T | rope(rest of x[h])].
// As the one-row projection, with the rows of one head. The last threadgroup of a head rotates.
// Grid: (10, tokens * 6) threadgroups of 2 simdgroups.
//   x          [tokens, 240] bf16
//   weight     [432, 24] bf16
//   out        [tokens, 6, 88] bf16
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


constant float rope_frequencies[8] = {
  1.0f, 0.316227764f, 0.100000001f, 0.0316227749f, 0.00999999978f, 0.00316227763f,
  0.00100000005f, 0.000316227757f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 8u;
  const uint pair = first ? element : element - 8u;
  const uint partner = first ? element + 8u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
// ---- kernel
[[kernel]] void latent_queries_6b82c8c5(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint t = threadgroup_position_in_grid.y / 6u;
  const uint head = threadgroup_position_in_grid.y % 6u;
  const device bfloat16_t* input = x + (ulong)t * 240u + head * 40u;
  device bfloat16_t* target = out + (ulong)threadgroup_position_in_grid.y * 88u;
  if (threadgroup_position_in_grid.x == 9u) {
    const int position = positions[t];
    for (uint i = thread_index_in_threadgroup; i < 16u; i += 64u) {
      target[72u + i] = (bfloat16_t)rotate(input + 24u, i, rotation(i, position));
    }
    return;
  }
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 72u;

  if (first >= end) {
    return;
  }
  const uint head_row = head * 72u;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{weight + (ulong)row * 24u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 2u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 3u) {
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
