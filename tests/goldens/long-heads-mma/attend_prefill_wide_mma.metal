// attend_prefill_wide_mma_f38aaa09
// small spec of a test
//
// Prefill by matrix instructions: RoPE of the queries and attention over the arena, for long heads and chunks that may see earlier
// context. One threadgroup serves 2 query heads on one KV head, of a tile of 16 query tokens: 32 rows, 16 to 4 simdgroups.
// These share the elements: each has 64 of queries and keys, for parts of the scores that they add up in threadgroup memory,
// and sums 64 of the values. The context is walked 32 keys at a time. A lane reads 16 bytes of K or V at a time, which permutes
// a head's dimensions: those of Q and K alike, and those of V are put back when results are stored. A query or a weight is
// the sum of two bf16 numbers, of which the second is what the first rounds off.
// Source: FlashAttention-2 (Dao 2023), with keys and values gathered through the block table.
// Grid: (2 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 2048] bf16: 4 query, 2 key, 2 value heads of 256
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [12, 2, 16, 2, 256] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 1024] bf16
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
constant float rope_frequencies[128] = {
  1.0f, 0.930572033f, 0.865964353f, 0.805842161f, 0.749894202f, 0.697830558f,
  0.649381638f, 0.604296386f, 0.562341332f, 0.523299098f, 0.486967534f, 0.453158379f,
  0.421696514f, 0.392418981f, 0.365174115f, 0.339820832f, 0.316227764f, 0.294272721f,
  0.273841977f, 0.254829675f, 0.237137377f, 0.220673412f, 0.2053525f, 0.191095293f,
  0.177827939f, 0.165481716f, 0.153992653f, 0.143301263f, 0.133352146f, 0.124093778f,
  0.115478195f, 0.107460782f, 0.100000001f, 0.0930572078f, 0.0865964293f, 0.0805842206f,
  0.0749894232f, 0.0697830617f, 0.0649381652f, 0.0604296401f, 0.0562341325f, 0.0523299128f,
  0.0486967526f, 0.0453158356f, 0.0421696492f, 0.0392418988f, 0.0365174115f, 0.0339820832f,
  0.0316227749f, 0.0294272713f, 0.0273841955f, 0.0254829675f, 0.0237137377f, 0.0220673401f,
  0.0205352511f, 0.0191095304f, 0.0177827943f, 0.0165481716f, 0.0153992651f, 0.0143301254f,
  0.013335214f, 0.0124093778f, 0.0115478197f, 0.0107460786f, 0.00999999978f, 0.00930572022f,
  0.00865964312f, 0.00805842225f, 0.00749894232f, 0.00697830599f, 0.00649381615f, 0.00604296383f,
  0.00562341325f, 0.00523299119f, 0.00486967526f, 0.00453158375f, 0.00421696482f, 0.0039241896f,
  0.00365174119f, 0.00339820841f, 0.00316227763f, 0.00294272718f, 0.00273841969f, 0.0025482967f,
  0.00237137382f, 0.00220673415f, 0.00205352507f, 0.00191095297f, 0.00177827943f, 0.00165481714f,
  0.00153992651f, 0.00143301254f, 0.00133352145f, 0.00124093774f, 0.00115478202f, 0.00107460783f,
  0.00100000005f, 0.000930572045f, 0.000865964335f, 0.000805842166f, 0.000749894185f, 0.000697830576f,
  0.000649381604f, 0.000604296394f, 0.000562341302f, 0.000523299095f, 0.000486967532f, 0.000453158369f,
  0.000421696517f, 0.000392418966f, 0.000365174114f, 0.000339820836f, 0.000316227757f, 0.00029427273f,
  0.000273841957f, 0.000254829676f, 0.00023713737f, 0.000220673406f, 0.00020535251f, 0.0001910953f,
  0.00017782794f, 0.000165481717f, 0.00015399266f, 0.000143301251f, 0.00013335215f, 0.000124093771f,
  0.0001154782f, 0.000107460786f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 128u;
  const uint pair = first ? element : element - 128u;
  const uint partner = first ? element + 128u : pair;
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
  return element % 128u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 128u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 128u : element - 128u};
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 2u + layer) * 16u + offset) * 512u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_wide_mma_f38aaa09(
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
  const uint share = simd_gid % 4u;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 2u;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 1024u;
    device bfloat16_t* row = out + (ulong)first_token * 1024u;
    for (uint i = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup; i < count; i += 512u) {
      row[i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(16u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];
  const uint end = first_position + num_tokens;
  const uint begin = (first_position + 1 > 40u ? first_position + 1 - 40u : 0u) / 32u * 32u;

  // The parts of scores of each simdgroup and lane, twice: those of one step are read while those of the next are written.
  MLXR_THREADGROUP(float4, parts, 2048);
  // Cosine and sine of each pair of elements of the tile's tokens, in the memory that later holds parts of scores.
  threadgroup float2* turns = (threadgroup float2*)parts;
  for (uint i = thread_index_in_threadgroup; i < 2048u; i += 256u) {
    turns[i] = turn_of(i % 128u, (int)(first_position + i / 128u));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Row r is query head first_head + r % 2 of token r / 2; rows past the end are not stored. A lane has rows
  // group and group + 8 of its simdgroup's, and of each 32 dimensions eight, from 8 quad on.
  const uint first_row = simd_gid / 4u * 16;
  uint4 upper[4], lower[4];
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group, t = row / 2u, head = first_head + row % 2u;
    const bool is_there = t < num_tokens;
    const threadgroup float2* turn = turns + min(t, 15u) * 128u;
    const float factor = 0.0901684389f;
    const device bfloat16_t* q = qkv + (ulong)(is_there ? first_token + t : 0u) * 2048u + (is_there ? head : 0u) * 256u;
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      const uint element = share * 64u + i / 4 * 32 + quad * 8 + i % 4 * 2;
      float2 x = float2(rotate(q, element, rotation_by(element, turn[pair_of(element)])),
                        rotate(q, element + 1, rotation_by(element + 1, turn[pair_of(element + 1)]))) * factor;
      const uint most = pack_bf16(x.x, x.y);
      const float2 kept = floats_of(most);
      upper[i / 2][i % 2 * 2 + e] = most;
      lower[i / 2][i % 2 * 2 + e] = pack_bf16(x.x - kept.x, x.y - kept.y);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // A lane's running results are those of rows group and group + 8.
  float2 maximum = float2(LOWEST);
  float2 total = float2(0.0f);
  float4 sums[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    sums[i] = float4(0.0f);
  }
  const uint first_of_rows = first_row / 2u;
  // The positions of this lane's rows. No row of the simdgroup sees keys from some_see on.
  const uint position[2] = {first_position + min((first_row + group) / 2u, num_tokens - 1),
                            first_position + min((first_row + group + 8) / 2u, num_tokens - 1)};
  const uint some_see = first_of_rows < num_tokens ? first_position + min((first_row + 15) / 2u, num_tokens - 1) + 1 : 0;

  uint4 keys[4][2], values[8][1];
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint at = min(begin + n * 8 + group, end - 1);
      const ulong row = arena_row((uint)table[(min(begin + n / 2 * 16, end - 1)) / 16u], layer[0], at % 16u) + kv_head * 256u + share * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        keys[n][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
#pragma unroll
    for (uint j = 0; j < 8u; j++) {
      const uint at = min(begin + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(min(begin + j / 4 * 16, end - 1)) / 16u], layer[0], at % 16u) + kv_head * 256u + share * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        values[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
      }
    }
  threadgroup float4* written = parts;
  for (uint first = begin; first < end; first += 32u) {
    // score[n]: keys 8 n + 2 quad and 8 n + 2 quad + 1, x and y for row group, z and w for row group + 8.
    float4 score[4];
    if (first < some_see) {
#pragma unroll
      for (uint n = 0; n < 4u; n++) {
        score[n] = float4(0.0f);
#pragma unroll
        for (uint c = 0; c < 2u; c++) {
          score[n] = mma_bf16(lower[2 * c], keys[n][c].xy, score[n], lane);
          score[n] = mma_bf16(lower[2 * c + 1], keys[n][c].zw, score[n], lane);
          score[n] = mma_bf16(upper[2 * c], keys[n][c].xy, score[n], lane);
          score[n] = mma_bf16(upper[2 * c + 1], keys[n][c].zw, score[n], lane);
        }
        written[(simd_gid * 4u + n) * 32 + lane] = score[n];
      }
    }
    if (first + 32u < some_see) {
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint at = min(first + 32u + n * 8 + group, end - 1);
      const ulong row = arena_row((uint)table[(min(first + 32u + n / 2 * 16, end - 1)) / 16u], layer[0], at % 16u) + kv_head * 256u + share * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        keys[n][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup float4* read = written + (simd_gid - share) * 128u + lane;
    written = written == parts ? parts + 1024 : parts;
    if (first >= some_see) {
      continue;
    }
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      score[n] = read[n * 32];
#pragma unroll
      for (uint s = 1; s < 4u; s++) {
        score[n] += read[(s * 4u + n) * 32];
      }
    }
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        const uint key = first + n * 8 + quad * 2 + i % 2;
        const bool seen = key <= position[i / 2] && key + 40u > position[i / 2];
        score[n][i] = seen ? score[n][i] : LOWEST;
      }
    }
    float2 largest = maximum;
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
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
    for (uint n = 0; n < 4u; n += 2) {
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
          value[j] = values[n * 2 + j][d];
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
    if (first + 32u < some_see) {
#pragma unroll
    for (uint j = 0; j < 8u; j++) {
      const uint at = min(first + 32u + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(min(first + 32u + j / 4 * 16, end - 1)) / 16u], layer[0], at % 16u) + kv_head * 256u + share * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        values[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
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
      device uint4* target = (device uint4*)(out + (ulong)(first_token + t) * 1024u + head * 256u + share * 64u + quad * 16);
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
