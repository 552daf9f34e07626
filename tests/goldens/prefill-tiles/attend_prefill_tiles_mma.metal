// attend_prefill_tiles_mma_cbef3495
// small spec of a test
//
// Prefill by matrix instructions of four simdgroups: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 2 query heads on one KV head, of a tile of 32 query tokens: 64 rows, 64 to four simdgroups. The last
// tiles, which see most keys, come first. Keys are walked 64 at a time through threadgroup memory, to which they are copied 2 steps ahead; scores
// of a step are computed while the values of the step before are multiplied. A query or a weight is the
// sum of two bf16 numbers, of which the second is what the first rounds off.
// Source: FlashAttention-3 (Shah et al. 2024), with the K and V tiles gathered through the block table.
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
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
#endif
#ifndef MLXR_COPY_AHEAD  // a host may copy 16 bytes while other work goes on, and wait until at most `left` groups of copies are not done
#define MLXR_COPY_AHEAD(to, from) *(to) = *(from)
#define MLXR_END_COPIES()
#define MLXR_AWAIT_COPIES(left)
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
#ifndef MLXR_TILES
#define MLXR_TILES(name, count) MLXR_THREADGROUP(uint4, name, count)
#define MLXR_SHOW_TILES()
#define MLXR_ADD_PRODUCTS(type, tiles, sums, x, w, part, parts, lane) if (part < parts) add_products(tiles, sums, x, w, part, lane)
#define MLXR_AWAIT_PRODUCTS()
// Two numbers of a row.
inline uint pair_of(const threadgroup uint4* tile, uint row, uint vector, uint place) {
  return ((const threadgroup uint*)(tile + row * 8 + (vector ^ row % 8)))[place];
}
inline void add_products(uint tiles, thread float4* sums, const threadgroup uint4* x, const threadgroup uint4* w, uint part, uint lane) {
  const uint row = part * 16 + lane / 4, place = lane % 4;
  for (uint v = 0; v < 8; v += 2) {
    const uint4 a = uint4(pair_of(x, row, v, place), pair_of(x, row + 8, v, place), pair_of(x, row, v + 1, place), pair_of(x, row + 8, v + 1, place));
    for (uint n = 0; n < tiles; n++) {
      const uint of_w = n * 8 + lane / 4;
      sums[n] = mma_bf16(a, uint2(pair_of(w, of_w, v, place), pair_of(w, of_w, v + 1, place)), sums[n], lane);
    }
  }
}
#endif
#ifndef MLXR_ADD_TO_PRODUCTS
#define MLXR_NO_PRODUCTS(tiles, sums) for (uint n = 0; n < tiles; n++) sums[n] = float4(0.0f)
#define MLXR_BEGIN_PRODUCTS()
#define MLXR_END_PRODUCTS()
#define MLXR_AWAIT_BUT_LAST_PRODUCTS()
#define MLXR_ADD_TO_PRODUCTS(type, tiles, sums, first, a, x, at, step, lane) add_to_products(tiles, sums, a, x + (at), step, lane)
inline void add_to_products(uint tiles, thread float4* sums, uint4 a, const threadgroup uint4* x, uint step, uint lane) {
  for (uint n = 0; n < tiles; n++) {
    const uint row = n * 8 + lane / 4, place = lane % 4;
    sums[n] = mma_bf16(a, uint2(pair_of(x, row, 2 * step, place), pair_of(x, row, 2 * step + 1, place)), sums[n], lane);
  }
}
#endif
#ifndef MLXR_ADD_ROWS_PRODUCTS
#define MLXR_HOLD(tiles, sums)
#define MLXR_AFTER(x)
#define MLXR_ADD_ROWS_PRODUCTS(type, tiles, sums, a, x, rows, lane) add_rows_products(tiles, sums, a, x, rows, lane)
inline uint pair_of_rows(const threadgroup uint4* x, uint rows, uint row, uint column) {
  const uint vector = column % 64 / 8, place = column % 8 / 2;
  const threadgroup uint4* const piece = x + column / 64 * rows * 8;
  const uint a = ((const threadgroup uint*)(piece + row * 8 + (vector ^ row % 8)))[place];
  const uint b = ((const threadgroup uint*)(piece + row * 8 + 8 + (vector ^ (row + 1) % 8)))[place];
  return column % 2 == 0 ? lower_halves(a, b) : upper_halves(a, b);
}
inline void add_rows_products(uint tiles, thread float4* sums, uint4 a, const threadgroup uint4* x, uint rows, uint lane) {
  for (uint n = 0; n < tiles; n++) {
    const uint column = n * 8 + lane / 4, row = lane % 4 * 2;
    sums[n] = mma_bf16(a, uint2(pair_of_rows(x, rows, row, column), pair_of_rows(x, rows, row + 8, column)), sums[n], lane);
  }
}
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
[[kernel]] void attend_prefill_tiles_mma_cbef3495(
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
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]],
  uint3 threadgroups_per_grid [[threadgroups_per_grid]]) {
  // Numbers of the batch are there before the launch before has ended; nothing is written by then.
  const uint tile_of_grid = threadgroups_per_grid.y - 1 - threadgroup_position_in_grid.y;
  if (query_tiles[2 * tile_of_grid] < 0) {
    MLXR_AWAIT_INPUTS()
  }
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 2u;
  const uint first_token = (uint)query_tiles[2 * tile_of_grid + 1];
  if (query_tiles[2 * tile_of_grid] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * tile_of_grid]) * 256u;
    device bfloat16_t* row = out + (ulong)first_token * 256u;
    for (uint i = threadgroup_position_in_grid.x * 128u + thread_index_in_threadgroup; i < count; i += 256u) {
      row[i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * tile_of_grid];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(32u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];
  const uint end = first_position + num_tokens;
  const uint begin = 0u;

  // A stage has keys and then values, in pieces of 64 elements, 8 vectors a row. Vector v of row r lies where v ^ r % 8 would.
  MLXR_TILES(staged, 3072);
  const uint copied = thread_index_in_threadgroup / 8u, chunk = thread_index_in_threadgroup % 8u;
  threadgroup uint4* const to = staged + chunk / 8 * 512u + copied * 8 + (chunk % 8 ^ copied % 8);
  const ulong own_chunk = kv_head * 64u + chunk * 8;
  // Cosine and sine of each pair of elements of the tile's tokens, in the memory that later holds keys and values.
  threadgroup float2* turns = (threadgroup float2*)(staged + 2048);
  for (uint i = thread_index_in_threadgroup; i < 1024u; i += 128u) {
    turns[i] = turn_of(i % 32u, (int)(first_position + i / 32u));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  MLXR_AWAIT_INPUTS()
#pragma unroll 1
  for (uint stage = 0; stage < 2u; stage++) {
    const uint first = begin + stage * 64u;
    if (first < end) {
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint at = min(first + copied + n * 16u, end - 1);
      const ulong row = arena_row((uint)table[(min(first + n * 16u / 16 * 16, end - 1)) / 16u], layer[0], at % 16u) + own_chunk;
      threadgroup uint4* const place = to + stage * 1024u + n * 128u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(k_arena + row));
      MLXR_COPY_AHEAD(place + 512, (const device uint4*)(v_arena + row));
    }
    }
    MLXR_END_COPIES();
  }

  // Row r is query head first_head + r % 2 of token r / 2; rows past the end are not stored. A lane has rows
  // group and group + 8 of its simdgroup's, and of each 8 elements two, from 2 quad on.
  const uint first_row = simd_gid * 16;
  uint4 query[8];
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group, t = row / 2u, head = first_head + row % 2u;
    const bool is_there = t < num_tokens;
    const threadgroup float2* turn = turns + min(t, 31u) * 32u;
    const float factor = 0.180336878f;
    const device bfloat16_t* q = qkv + (ulong)(is_there ? first_token + t : 0u) * 512u + (is_there ? head : 0u) * 64u;
    // Two words at once: elements of the first half of the head, and their partners of the second.
    uint first_half[4], second_half[4];
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      first_half[i] = ((const device uint*)q)[i * 4 + quad];
      second_half[i] = ((const device uint*)q)[16 + i * 4 + quad];
    }
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const float2 x = floats_of(first_half[i]), y = floats_of(second_half[i]);
      const float2 even = turn[i * 8 + quad * 2] * factor, odd = turn[i * 8 + quad * 2 + 1] * factor;
      {
        const float2 turned = float2(x.x * even.x - y.x * even.y, x.y * odd.x - y.y * odd.y);
        const uint most = pack_bf16(turned.x, turned.y);
        query[i / 2][i % 2 * 2 + e] = most;
        const float2 kept = floats_of(most);
        query[4 + i / 2][i % 2 * 2 + e] = pack_bf16(turned.x - kept.x, turned.y - kept.y);
      }
      {
        const float2 turned = float2(y.x * even.x + x.x * even.y, y.y * odd.x + x.y * odd.y);
        const uint most = pack_bf16(turned.x, turned.y);
        query[2 + i / 2][i % 2 * 2 + e] = most;
        const float2 kept = floats_of(most);
        query[4 + 2 + i / 2][i % 2 * 2 + e] = pack_bf16(turned.x - kept.x, turned.y - kept.y);
      }
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

  uint slot = 0;
  float4 score[8];
  uint4 weight[8];
  MLXR_AWAIT_COPIES(1);
  MLXR_SHOW_TILES();
  threadgroup_barrier(mem_flags::mem_threadgroup);
    MLXR_NO_PRODUCTS(8, score);
    MLXR_BEGIN_PRODUCTS();
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      MLXR_ADD_TO_PRODUCTS(bf16, 8, score, s == 0, query[s], staged, s / 4u % 1u * 512u, s % 4u, lane);
    }
    MLXR_END_PRODUCTS();
  MLXR_AWAIT_PRODUCTS();
  MLXR_HOLD(8, score);
  {
    const uint first = begin;

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
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const float4 s = score[n];
      score[n] = float4(exp2(s.x - base.x), exp2(s.y - base.x), exp2(s.z - base.y), exp2(s.w - base.y));
      total = total + float2(score[n].x + score[n].y, score[n].z + score[n].w);
    }
  }
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const float4 p = score[n];
      const uint2 most = uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
      weight[n / 2][n % 2 * 2] = most.x;
      weight[n / 2][n % 2 * 2 + 1] = most.y;
      const float2 kept = floats_of(most.x), also_kept = floats_of(most.y);
      weight[4 + n / 2][n % 2 * 2] = pack_bf16(p.x - kept.x, p.y - kept.y);
      weight[4 + n / 2][n % 2 * 2 + 1] = pack_bf16(p.z - also_kept.x, p.w - also_kept.y);
    }
#pragma unroll 1
  for (uint first_before = begin; first_before + 64u < end; first_before += 64u) {
    // The next scores, while the values of the step before are multiplied.
    const uint first = first_before + 64u;
    const threadgroup uint4* const values = staged + slot * 1024u + 512;
    MLXR_AWAIT_COPIES(0);
    MLXR_SHOW_TILES();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint next = slot == 2u ? 0 : slot + 1;
    MLXR_NO_PRODUCTS(8, score);
    MLXR_BEGIN_PRODUCTS();
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      MLXR_ADD_TO_PRODUCTS(bf16, 8, score, s == 0, query[s], (staged + next * 1024u), s / 4u % 1u * 512u, s % 4u, lane);
    }
    MLXR_END_PRODUCTS();
    MLXR_BEGIN_PRODUCTS();
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      MLXR_ADD_ROWS_PRODUCTS(bf16, 8, sums, weight[n], values + n % 4u * 128u, 64, lane);
    }
    MLXR_END_PRODUCTS();
    if (first + 64u < end) {
      const uint free = slot == 0 ? 2u : slot - 1;  // all have multiplied what was there
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      const uint at = min(first + 64u + copied + n * 16u, end - 1);
      const ulong row = arena_row((uint)table[(min(first + 64u + n * 16u / 16 * 16, end - 1)) / 16u], layer[0], at % 16u) + own_chunk;
      threadgroup uint4* const place = to + free * 1024u + n * 128u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(k_arena + row));
      MLXR_COPY_AHEAD(place + 512, (const device uint4*)(v_arena + row));
    }
    }
    MLXR_END_COPIES();
    slot = next;
    MLXR_AWAIT_BUT_LAST_PRODUCTS();
    MLXR_HOLD(8, score);

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
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const float4 s = score[n];
      score[n] = float4(exp2(s.x - base.x), exp2(s.y - base.x), exp2(s.z - base.y), exp2(s.w - base.y));
      total = total + float2(score[n].x + score[n].y, score[n].z + score[n].w);
    }
    MLXR_AFTER(total.x + total.y)
    MLXR_AWAIT_PRODUCTS();
    MLXR_HOLD(8, sums);
    if (keep.x != 1.0f || keep.y != 1.0f) {
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        sums[i] = sums[i] * float4(keep.x, keep.x, keep.y, keep.y);
      }
    }
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const float4 p = score[n];
      const uint2 most = uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
      weight[n / 2][n % 2 * 2] = most.x;
      weight[n / 2][n % 2 * 2 + 1] = most.y;
      const float2 kept = floats_of(most.x), also_kept = floats_of(most.y);
      weight[4 + n / 2][n % 2 * 2] = pack_bf16(p.x - kept.x, p.y - kept.y);
      weight[4 + n / 2][n % 2 * 2 + 1] = pack_bf16(p.z - also_kept.x, p.w - also_kept.y);
    }
  }
  const threadgroup uint4* const values = staged + slot * 1024u + 512;
    MLXR_BEGIN_PRODUCTS();
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      MLXR_ADD_ROWS_PRODUCTS(bf16, 8, sums, weight[n], values + n % 4u * 128u, 64, lane);
    }
    MLXR_END_PRODUCTS();
  MLXR_AWAIT_PRODUCTS();
  MLXR_HOLD(8, sums);
#pragma unroll
  for (ushort offset = 1; offset < 4; offset *= 2) {
    total = total + float2(simd_shuffle_xor(total.x, offset), simd_shuffle_xor(total.y, offset));
  }
#pragma unroll
  for (uint e = 0; e < 2; e++) {
    const uint row = first_row + 8 * e + group, t = row / 2u, head = first_head + row % 2u;
    if (t < num_tokens) {
      device uint* target = (device uint*)(out + (ulong)(first_token + t) * 256u + head * 64u + quad * 2);
      const float factor = 1.0f / total[e];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        target[n * 4] = pack_bf16(sums[n][2 * e] * factor, sums[n][2 * e + 1] * factor);
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && tile_of_grid == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
