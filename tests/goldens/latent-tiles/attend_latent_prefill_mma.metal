// attend_latent_prefill_mma_2121e12a
// small spec of a test
//
// Attention to rows of latents by matrix instructions, for chunks that may see earlier context. All heads read the same row of a
// key, of which the first 256 elements are also the value. A threadgroup has 16 query rows, heads of neighbouring tokens; it
// walks the context 16 keys at a time through threadgroup memory. Simdgroup s makes the part of the scores that is in columns
// 32 s, 32 s + 128 ... of queries and rows, the simdgroups add up their parts, and each sums 64 columns of the values. A lane reads 16
// bytes of a row at a time, which permutes its columns: those of queries and keys alike, and those of values are put back
// when results are stored. A weight is the sum of two bf16 numbers.
// Grid: (1, tiles of 4 tokens) threadgroups of 4 simdgroups.
//   q          [tokens, 4, 288] bf16, rotated
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   latent_arena  [6, 1, 16, 1, 288] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 4, 256] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
// The bf16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return as_type<float2>(uint2(pair << 16, pair & 0xffff0000u));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_bf16(uint4 a, uint2 b, float4 c, uint lane) {
  for (uint t = 0; t < 4; t++) {
    const uint row = lane / 4 * 4 + t, column = lane % 4 * 8 + t;
    const uint4 w = uint4(simd_shuffle(a.x, row), simd_shuffle(a.y, row), simd_shuffle(a.z, row), simd_shuffle(a.w, row));
    const uint2 even = uint2(simd_shuffle(b.x, column), simd_shuffle(b.y, column));
    const uint2 odd = uint2(simd_shuffle(b.x, column + 4), simd_shuffle(b.y, column + 4));
    c.x = pair_product(w.z, even.y, pair_product(w.x, even.x, c.x));
    c.y = pair_product(w.z, odd.y, pair_product(w.x, odd.x, c.y));
    c.z = pair_product(w.w, even.y, pair_product(w.y, even.x, c.z));
    c.w = pair_product(w.w, odd.y, pair_product(w.y, odd.x, c.w));
  }
  return c;
}
#endif
#ifndef MLXR_HALVES
// The lower halves of two words, and the upper.
inline uint lower_halves(uint a, uint b) { return (a & 0xffffu) | b << 16; }
inline uint upper_halves(uint a, uint b) { return a >> 16 | (b & 0xffff0000u); }
#endif
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 288u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_latent_prefill_mma_2121e12a(
  const device bfloat16_t* q [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* block_tables [[buffer(4)]],
  const device uint32_t* layer [[buffer(5)]],
  const device bfloat16_t* latent_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device bfloat16_t* out [[buffer(8)]],
  device uint32_t* token_out [[buffer(9)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 1024u;
    device bfloat16_t* row = out + (ulong)first_token * 1024u;
    for (uint i = threadgroup_position_in_grid.x * 128u + thread_index_in_threadgroup; i < count; i += 128u) {
      row[i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(4u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];
  // Row r is head r % 4 of token r / 4 of the tile.
  const uint first_row = threadgroup_position_in_grid.x * 16, rows = num_tokens * 4u;
  if (first_row >= rows) {
    return;
  }
  const uint end = first_position + min(first_row + 15, rows - 1) / 4u + 1;

  // 16 rows of keys, 37 times 16 bytes apart, so that lanes read neighbouring keys from different banks.
  MLXR_THREADGROUP(uint4, keys, 592);
  // Of each simdgroup, its part of the scores of each lane.
  MLXR_THREADGROUP(float4, parts, 256);
  uint4 next[5];
#pragma unroll
    for (uint n = 0; n < 5u; n++) {
      const uint i = min(thread_index_in_threadgroup + n * 128u, 575u);
      const uint at = min(0u + i / 36u, end - 1);
      next[n] = ((const device uint4*)(latent_arena + arena_row((uint)table[(at) / 16u], layer[0], at % 16u)))[i % 36u];
    }

  // Of each 32 columns of rows group and group + 8 a lane has eight, from 8 quad on. Rows past the end repeat the last one
  // and are not stored.
  uint4 even[3], odd[3];
  uint position[2];
  float factor[2];
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = min(first_row + 8 * e + group, rows - 1);
    const device uint4* of_row = (const device uint4*)(q + ((ulong)first_token * 4u + row) * 288u) + quad;
    position[e] = first_position + row / 4u;
    factor[e] = 0.180336878f;
#pragma unroll
    for (uint j = 0; j < 3u; j++) {
      const uint step = min(simdgroup + j * 4u, 8u);
      if (e == 0) {
        even[j] = of_row[step * 4];
      } else {
        odd[j] = of_row[step * 4];
      }
    }
  }
  float2 maximum = float2(LOWEST), total = float2(0.0f);
  float4 sums[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    sums[i] = float4(0.0f);
  }

  for (uint first = 0; first < end; first += 16) {
#pragma unroll
    for (uint n = 0; n < 5u; n++) {
      const uint i = thread_index_in_threadgroup + n * 128u;
      if (i >= 576u) {
        break;
      }
      keys[i / 36u * 37u + i % 36u] = next[n];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first + 16 < end) {
#pragma unroll
    for (uint n = 0; n < 5u; n++) {
      const uint i = min(thread_index_in_threadgroup + n * 128u, 575u);
      const uint at = min(first + 16 + i / 36u, end - 1);
      next[n] = ((const device uint4*)(latent_arena + arena_row((uint)table[(at) / 16u], layer[0], at % 16u)))[i % 36u];
    }
    }
    // part[n]: keys 8 n + 2 quad and 8 n + 2 quad + 1, x and y for row group, z and w for row group + 8.
#pragma unroll
    for (uint n = 0; n < 2; n++) {
      float4 part = float4(0.0f);
#pragma unroll
      for (uint j = 0; j < 3u; j++) {
        const uint step = simdgroup + j * 4u;
        if (step >= 9u) {
          break;
        }
        const uint4 key = keys[(n * 8 + group) * 37u + step * 4 + quad];
        part = mma_bf16(uint4(even[j].x, odd[j].x, even[j].y, odd[j].y), key.xy, part, lane);
        part = mma_bf16(uint4(even[j].z, odd[j].z, even[j].w, odd[j].w), key.zw, part, lane);
      }
      parts[(simdgroup * 2 + n) * 32 + lane] = part;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 score[2];
    float2 largest = maximum;
#pragma unroll
    for (uint n = 0; n < 2; n++) {
      score[n] = parts[n * 32 + lane];
#pragma unroll
      for (uint s = 1; s < 4u; s++) {
        score[n] += parts[(s * 2 + n) * 32 + lane];
      }
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        const uint key = first + n * 8 + quad * 2 + i % 2;
        score[n][i] = key <= position[i / 2] ? score[n][i] * factor[i / 2] : LOWEST;
      }
      largest = float2(max(largest.x, max(score[n].x, score[n].y)), max(largest.y, max(score[n].z, score[n].w)));
    }
#pragma unroll
    for (ushort offset = 1; offset < 4; offset *= 2) {
      largest = float2(max(largest.x, simd_shuffle_xor(largest.x, offset)), max(largest.y, simd_shuffle_xor(largest.y, offset)));
    }
    // Every row sees the first key, so no maximum is LOWEST.
    const float2 keep = float2(exp2(maximum.x - largest.x), exp2(maximum.y - largest.y));
    maximum = largest;
    total = total * keep;
    if (keep.x != 1.0f || keep.y != 1.0f) {
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        sums[i] = sums[i] * float4(keep.x, keep.x, keep.y, keep.y);
      }
    }
    uint4 most, least;
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const float4 s = score[j];
      const float4 p = float4(exp2(s.x - largest.x), exp2(s.y - largest.x), exp2(s.z - largest.y), exp2(s.w - largest.y));
      total = total + float2(p.x + p.y, p.z + p.w);
      const uint2 rounded = uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
      const float2 kept = floats_of(rounded.x), also_kept = floats_of(rounded.y);
      most[2 * j] = rounded.x;
      most[2 * j + 1] = rounded.y;
      least[2 * j] = pack_bf16(p.x - kept.x, p.y - kept.y);
      least[2 * j + 1] = pack_bf16(p.z - also_kept.x, p.w - also_kept.y);
    }
#pragma unroll
    for (uint d = 0; d < 1u; d++) {
      uint4 value[4];
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        value[j] = keys[(j / 2 * 8 + 2 * quad + j % 2) * 37u + simdgroup * 8u + d * 8 + group];
      }
#pragma unroll
      for (uint w = 0; w < 4; w++) {
        const uint2 low = uint2(lower_halves(value[0][w], value[1][w]), lower_halves(value[2][w], value[3][w]));
        const uint2 high = uint2(upper_halves(value[0][w], value[1][w]), upper_halves(value[2][w], value[3][w]));
        const uint i = d * 8 + w * 2;
        sums[i] = mma_bf16(most, low, sums[i], lane);
        sums[i + 1] = mma_bf16(most, high, sums[i + 1], lane);
        sums[i] = mma_bf16(least, low, sums[i], lane);
        sums[i + 1] = mma_bf16(least, high, sums[i + 1], lane);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (ushort offset = 1; offset < 4; offset *= 2) {
    total = total + float2(simd_shuffle_xor(total.x, offset), simd_shuffle_xor(total.y, offset));
  }
  // A lane has 16 neighbouring columns of each 64, from 16 quad on.
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group;
    if (row < rows) {
      device uint4* target = (device uint4*)(out + ((ulong)first_token * 4u + row) * 256u + simdgroup * 64u + quad * 16);
      const float inverse = 1.0f / total[e];
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
#pragma unroll
        for (uint c = 0; c < 2; c++) {
          uint4 packed;
#pragma unroll
          for (uint w = 0; w < 4; w++) {
            packed[w] = pack_bf16(sums[d * 8 + 2 * w][2 * e + c] * inverse, sums[d * 8 + 2 * w + 1][2 * e + c] * inverse);
          }
          target[d * 8 + c] = packed;
        }
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
