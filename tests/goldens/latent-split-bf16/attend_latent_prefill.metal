// attend_latent_prefill_4e81aa68
// small spec of a test
//
// Attention of a token to the rows of its sequence, of which the first 72 elements are also the value: so a row is loaded
// once for its score and its sum. A simdgroup has 4 query heads; its lanes hold every 32nd vector of 4 elements of the
// queries, of the sums and of 2 rows. 
// Grid: (1 groups of heads, tiles of one token) threadgroups of 2 simdgroups.
//   q          [tokens, 6, 88] bf16, rotated
//   query_tiles  [tiles, 2] i32: sequence, token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   latent_arena  [12, 1, 16, 1, 88] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 6, 72] bf16
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

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 88u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_latent_prefill_4e81aa68(
  const device bfloat16_t* q [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device bfloat16_t* latent_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device bfloat16_t* out [[buffer(7)]],
  device uint32_t* token_out [[buffer(8)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint group = simdgroup_index_in_threadgroup / 1u;
  const uint share = simdgroup_index_in_threadgroup % 1u;
  const uint t = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 432u;
    for (uint i = threadgroup_position_in_grid.x * 64u + thread_index_in_threadgroup; i < count; i += 64u) {
      out[(ulong)t * 432u + i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const uint position = (uint)positions[t];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint first_head = threadgroup_position_in_grid.x * 8u + group * 4u;
  const uint begin = 0;
  const uint end = position + 1;
  const float factor = 0.22811012f;

  float4 queries[4][1];
  float4 values[4][1];
  float maximum[4];
  float total[4];
#pragma unroll
  for (uint h = 0; h < 4u; h++) {
    // Heads past the last one repeat it, and are not stored.
    const uint head = min(first_head + h, 5u);
    maximum[h] = LOWEST;
    total[h] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      queries[h][i] = float4(0.0f);
      if (element < 88u) {
        load_bf16_4(q + ((ulong)t * 6u + head) * 88u + element, &queries[h][i]);
        queries[h][i] *= factor;
      }
    }
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      values[h][i] = float4(0.0f);
    }
  }

  for (uint first_key = begin + share * 2u; first_key < end; first_key += 2u) {
    float4 rows[2][1];
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + u, end - 1);
      const device bfloat16_t* row = latent_arena + arena_row((uint)table[(at) / 16u], layer[0], at % 16u);
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        const uint element = (lane + 32u * i) * 4u;
        rows[u][i] = float4(0.0f);
        if (element < 88u) {
          load_bf16_4(row + element, &rows[u][i]);
        }
      }
    }
#pragma unroll
    for (uint h = 0; h < 4u; h++) {
      float scores[2];
      float largest = maximum[h];
#pragma unroll
      for (uint u = 0; u < 2u; u++) {
        float4 products = queries[h][0] * rows[u][0];
#pragma unroll
        for (uint i = 1; i < 1u; i++) {
          products += queries[h][i] * rows[u][i];
        }
        const float score = simd_sum(sum4(products));
        scores[u] = first_key + u < end ? score : LOWEST;
        largest = max(largest, scores[u]);
      }
      const float keep = exp2(maximum[h] - largest);
      maximum[h] = largest;
      total[h] *= keep;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        values[h][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 2u; u++) {
        const float weight = first_key + u < end ? exp2(scores[u] - largest) : 0.0f;
        total[h] += weight;
        const float part = weight;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          values[h][i] += rows[u][i] * part;
        }
      }
    }
  }
#pragma unroll
  for (uint h = 0; h < 4u; h++) {
    if (first_head + h < 6u) {
      device bfloat16_t* target = out + ((ulong)t * 6u + first_head + h) * 72u;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        const uint element = (lane + 32u * i) * 4u;
        if (element < 72u) {
#pragma unroll
          for (uint j = 0; j < 4; j++) {
            target[element + j] = (bfloat16_t)(values[h][i][j] / total[h]);
          }
        }
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
