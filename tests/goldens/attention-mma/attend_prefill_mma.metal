// attend_prefill_mma_060a375e
// small spec of a test
//
// Prefill by matrix instructions: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 2 query heads on one KV head, of a tile of 32 query tokens: 64 rows, 16 to a simdgroup. It walks
// the context 64 keys at a time through threadgroup memory, and loads the next ones before it multiplies by these. Scores
// are Q K^T, values are P V. A lane reads 16 bytes of K or V at a time, which permutes a head's dimensions: those of Q and K
// alike, and those of V are put back when results are stored. A query or a weight is the sum of two bf16 numbers, of which
// the second is what the first rounds off.
// Source: FlashAttention-2 (Dao 2023), with the K and V tiles gathered through the block table.
// Grid: (2 KV heads, tiles) threadgroups of 4 simdgroups.
//   qkv        [tokens, 512] bf16: 4 query, 2 key, 2 value heads of 64
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [12, 2, 16, 2, 64] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 256] bf16
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
constant float rope_frequencies[32] = {
  1.0f, 0.749894202f, 0.562341332f, 0.421696514f, 0.316227764f, 0.237137377f,
  0.177827939f, 0.133352146f, 0.100000001f, 0.0749894232f, 0.0562341325f, 0.0421696492f,
  0.0316227749f, 0.0237137377f, 0.0177827943f, 0.013335214f, 0.00999999978f, 0.00749894232f,
  0.00562341325f, 0.00421696482f, 0.00316227763f, 0.00237137382f, 0.00177827943f, 0.00133352145f,
  0.00100000005f, 0.000749894185f, 0.000562341302f, 0.000421696517f, 0.000316227757f, 0.00023713737f,
  0.00017782794f, 0.00013335215f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 32u;
  const uint pair = first ? element : element - 32u;
  const uint partner = first ? element + 32u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float2 turn_of(uint pair, int position) {
  const Rotation r = rotation(pair, position);
  return float2(r.cosine, -r.sine);
}
inline uint pair_of(uint element) {
  return element % 32u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 32u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 32u : element - 32u};
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 2u + layer) * 16u + offset) * 128u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_mma_060a375e(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* block_tables [[buffer(4)]],
  const device uint32_t* layer [[buffer(5)]],
  const device bfloat16_t* k_arena [[buffer(6)]],
  const device bfloat16_t* v_arena [[buffer(7)]],
  const device uint32_t* token [[buffer(8)]],
  device bfloat16_t* out [[buffer(9)]],
  device uint32_t* token_out [[buffer(10)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 2u;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 256u;
    device bfloat16_t* row = out + (ulong)first_token * 256u;
    for (uint i = threadgroup_position_in_grid.x * 128u + thread_index_in_threadgroup; i < count; i += 256u) {
      row[i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(32u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];
  const uint end = first_position + num_tokens;
  const uint begin = 0u;

  MLXR_THREADGROUP(uint4, k_tile, 1024);
  threadgroup uint4* v_tile = k_tile + 512;
  uint4 next_k[4], next_v[4];
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint i = thread_index_in_threadgroup + n * 128u;
      const uint at = min(begin + i / 8u, end - 1);
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 64u;
      next_k[n] = ((const device uint4*)(k_arena + row))[i % 8u];
      next_v[n] = ((const device uint4*)(v_arena + row))[i % 8u];
    }

  // Cosine and sine of each pair of elements of the tile's tokens, in the memory that later holds keys and values.
  threadgroup float2* turns = (threadgroup float2*)k_tile;
  for (uint i = thread_index_in_threadgroup; i < 1024u; i += 128u) {
    turns[i] = turn_of(i % 32u, (int)(first_position + i / 32u));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Row r is query head first_head + r % 2 of token r / 2; rows past the end are not stored. A lane has rows
  // group and group + 8 of its simdgroup's, and of each 32 dimensions eight, from 8 quad on.
  const uint first_row = simd_gid * 16;
  uint4 upper[4], lower[4];
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group, t = row / 2u, head = first_head + row % 2u;
    const bool is_there = t < num_tokens;
    const threadgroup float2* turn = turns + min(t, 31u) * 32u;
    const float factor = 0.180336878f;
    const device bfloat16_t* q = qkv + (ulong)(is_there ? first_token + t : 0u) * 512u + (is_there ? head : 0u) * 64u;
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      const uint element = i / 4 * 32 + quad * 8 + i % 4 * 2;
      float2 x = float2(rotate(q, element, rotation_by(element, turn[pair_of(element)])),
                        rotate(q, element + 1, rotation_by(element + 1, turn[pair_of(element + 1)]))) * factor;
      const uint most = pack_bf16(x.x, x.y);
      const float2 kept = floats_of(most);
      upper[i / 2][i % 2 * 2 + e] = most;
      lower[i / 2][i % 2 * 2 + e] = pack_bf16(x.x - kept.x, x.y - kept.y);
    }
  }

  // A lane's running results are those of rows group and group + 8.
  float2 maximum = float2(LOWEST);
  float2 total = float2(0.0f);
  float4 sums[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    sums[i] = float4(0.0f);
  }
  const uint first_of_rows = first_row / 2u;
  // The positions of this lane's rows. No row of the simdgroup sees keys from some_see on; all rows see those before all_see.
  const uint position[2] = {first_position + min((first_row + group) / 2u, num_tokens - 1),
                            first_position + min((first_row + group + 8) / 2u, num_tokens - 1)};
  const uint some_see = first_of_rows < num_tokens ? first_position + min((first_row + 15) / 2u, num_tokens - 1) + 1 : 0;
  const uint all_see = first_position + first_of_rows + 1;

  for (uint first = begin; first < end; first += 64u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Chunks are permuted so that lanes that read neighbouring keys at once read from different banks.
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint i = thread_index_in_threadgroup + n * 128u, key = i / 8u, chunk = i % 8u;
      k_tile[key * 8u + (chunk ^ (key % 2 * 4))] = next_k[n];
      v_tile[key * 8u + (chunk ^ (key % 8 / 2 * 2))] = next_v[n];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (first + 64u < end) {
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint i = thread_index_in_threadgroup + n * 128u;
      const uint at = min(first + 64u + i / 8u, end - 1);
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 64u;
      next_k[n] = ((const device uint4*)(k_arena + row))[i % 8u];
      next_v[n] = ((const device uint4*)(v_arena + row))[i % 8u];
    }
    }
    if (first >= some_see) {
      continue;
    }

    // score[n]: keys 8 n + 2 quad and 8 n + 2 quad + 1, x and y for row group, z and w for row group + 8.
    float4 score[8];
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      score[n] = float4(0.0f);
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        const uint4 key = k_tile[(n * 8 + group) * 8u + ((c * 4 + quad) ^ (group % 2 * 4))];
        score[n] = mma_bf16(lower[2 * c], key.xy, score[n], lane);
        score[n] = mma_bf16(lower[2 * c + 1], key.zw, score[n], lane);
        score[n] = mma_bf16(upper[2 * c], key.xy, score[n], lane);
        score[n] = mma_bf16(upper[2 * c + 1], key.zw, score[n], lane);
      }
    }
    if (first + 64u > all_see) {
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
#pragma unroll
        for (uint i = 0; i < 4; i++) {
          const uint key = first + n * 8 + quad * 2 + i % 2;
          const bool seen = key <= position[i / 2];
          score[n][i] = seen ? score[n][i] : LOWEST;
        }
      }
    }
    float2 largest = maximum;
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      largest = float2(max(largest.x, max(score[n].x, score[n].y)), max(largest.y, max(score[n].z, score[n].w)));
    }
#pragma unroll
    for (ushort offset = 1; offset < 4; offset *= 2) {
      largest = float2(max(largest.x, simd_shuffle_xor(largest.x, offset)), max(largest.y, simd_shuffle_xor(largest.y, offset)));
    }
    // A row that has seen no key yet has weights of 0.
    const float2 base = float2(largest.x == LOWEST ? 0.0f : largest.x, largest.y == LOWEST ? 0.0f : largest.y);
    const float2 keep = float2(exp2(maximum.x - base.x), exp2(maximum.y - base.y));
    maximum = largest;
    total = total * keep;
    if (keep.x != 1.0f || keep.y != 1.0f) {
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        sums[i] = sums[i] * float4(keep.x, keep.x, keep.y, keep.y);
      }
    }
#pragma unroll
    for (uint n = 0; n < 8u; n += 2) {
      uint4 most, least;
#pragma unroll
      for (uint j = 0; j < 2; j++) {
        const float4 s = score[n + j];
        const float4 p = float4(exp2(s.x - base.x), exp2(s.y - base.x), exp2(s.z - base.y), exp2(s.w - base.y));
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
          value[j] = v_tile[(n * 8 + j / 2 * 8 + 2 * quad + j % 2) * 8u + ((d * 8 + group) ^ (quad * 2))];
        }
#pragma unroll
        for (uint w = 0; w < 4; w++) {
          const uint2 even = uint2(lower_halves(value[0][w], value[1][w]), lower_halves(value[2][w], value[3][w]));
          const uint2 odd = uint2(upper_halves(value[0][w], value[1][w]), upper_halves(value[2][w], value[3][w]));
          const uint i = d * 8 + w * 2;
          sums[i] = mma_bf16(most, even, sums[i], lane);
          sums[i + 1] = mma_bf16(most, odd, sums[i + 1], lane);
          sums[i] = mma_bf16(least, even, sums[i], lane);
          sums[i + 1] = mma_bf16(least, odd, sums[i + 1], lane);
        }
      }
    }
  }
#pragma unroll
  for (ushort offset = 1; offset < 4; offset *= 2) {
    total = total + float2(simd_shuffle_xor(total.x, offset), simd_shuffle_xor(total.y, offset));
  }
  // A lane has 16 neighbouring dimensions of each 64, from 16 quad on.
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group, t = row / 2u, head = first_head + row % 2u;
    if (t < num_tokens) {
      device uint4* target = (device uint4*)(out + (ulong)(first_token + t) * 256u + head * 64u + quad * 16);
      const float factor = 1.0f / total[e];
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
#pragma unroll
        for (uint c = 0; c < 2; c++) {
          uint4 packed;
#pragma unroll
          for (uint w = 0; w < 4; w++) {
            packed[w] = pack_bf16(sums[d * 8 + 2 * w][2 * e + c] * factor, sums[d * 8 + 2 * w + 1][2 * e + c] * factor);
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
