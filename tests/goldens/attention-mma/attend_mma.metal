// attend_mma_aee86df7
// small spec of a test
//
// Decode by matrix instructions: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 2 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 16 keys at a time: scores are Q K^T, where rows of Q are 8 heads and what their rounding leaves; values
// are V^T P^T for 8 heads. A lane reads 16 bytes of K or V at a time, which permutes a head's dimensions: those of K and Q alike,
// and those of V are put back when results are stored. A query or a weight is the sum of two bf16 numbers, of which the second is what the first rounds off.
// The new token's own K and V never come from the arena: they are stored there, and added to the result at the end.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2.
// Grid: (2 KV heads, seqs) threadgroups of 4 simdgroups.
//   qkv        [seqs, 512] bf16: 4 query, 2 key, 2 value heads of 64
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 16 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [12, 2, 16, 2, 64] bf16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 256] bf16
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
#ifndef MLXR_SEND_PAIR  // a host whose threadgroups write to each other's memory
#define MLXR_ARE_TOGETHER() false
#define MLXR_EXPECT(are_together, bytes)
#define MLXR_AWAIT_BEGIN()
#define MLXR_SEND_PAIR(place, rank, x) *(place) = x
#define MLXR_SEND_VECTOR(place, rank, x) *(place) = x
#define MLXR_AWAIT_SENT() threadgroup_barrier(mem_flags::mem_threadgroup);
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
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  return rotation_by(element, turns[pair_of(element)]);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 2u + layer) * 16u + offset) * 128u;
}
#ifndef MLXR_HALVES
// The lower halves of two words, and the upper.
inline uint lower_halves(uint a, uint b) { return (a & 0xffffu) | b << 16; }
inline uint upper_halves(uint a, uint b) { return a >> 16 | (b & 0xffff0000u); }
#endif
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_mma_aee86df7(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device bfloat16_t* k_arena [[buffer(5)]],
  const device bfloat16_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device bfloat16_t* out [[buffer(8)]],
  device uint32_t* token_out [[buffer(9)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  // Where threadgroups write to each other's memory, 2 of them share a context; elsewhere the first takes all of it.
  const uint kv_head = threadgroup_position_in_grid.x / 2u, rank = threadgroup_position_in_grid.x % 2u;
  const uint ranks = MLXR_ARE_TOGETHER() ? 2u : 1u;
  if (rank >= ranks) {
    return;
  }
  const uint first_head = kv_head * 2u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  // The threadgroups' shares of the context: equal multiples of 16 keys.
  const uint start = 0u;
  const uint last = position;
  const uint length = ((last - start) / (ranks * 16u) + 1) * 16u;
  const uint begin = min(start + rank * length, last);
  const uint end = min(begin + length, last);
  const bool owner = rank == ranks - 1;
  const uint slot = (uint)slots[sequence];
  const ulong newest_row =
      arena_row(slot / 16u, layer[0], slot % 16u) + kv_head * 64u;


  // Of 16 keys, a lane's parts of keys group and group + 8 and of values 2 quad, 2 quad + 1, 2 quad + 8 and 2 quad + 9.
  // Those of the next 16 are loaded as soon as these are used.
  const uint of_layer = layer[0];
  uint4 key[2][2];
  uint4 value[4][1];
  uint first = begin + simd_gid * 16;
  if (first < end) {
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint at = min(first + 8 * j + group, end - 1);
      const ulong row = arena_row((uint)table[(first) / 16u], of_layer, at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        key[j][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const uint at = min(first + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(first) / 16u], of_layer, at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        value[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
      }
    }
  }
  MLXR_THREADGROUP(float2, turns, 32);
  for (uint i = thread_index_in_threadgroup; i < 32u; i += 128u) {
    turns[i] = turn_of(i, (int)position);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  MLXR_EXPECT(ranks > 1, 544u)
  MLXR_AWAIT_INPUTS()

  // In threadgroup memory: queries, two parts each, and the new token's K and V, as pairs.
  MLXR_THREADGROUP(uint4, queries, 32);
  MLXR_THREADGROUP(uint, newest_pairs, 64);
  uint given[1];
  {
    const uint wanted = min(simd_gid, 3u);
    const uint of_head = wanted < 2u ? first_head + wanted : 4u + kv_head + (wanted == 3u ? 2u : 0u);
    const device uint* pairs = (const device uint*)(qkv + (ulong)sequence * 512u + of_head * 64u) + lane * 1u;
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      given[j] = pairs[j];
    }
  }
#pragma unroll 1
  for (uint which = simd_gid; which < 4u; which += 4u) {
    uint next[1];
  {
    const uint wanted = min(which + 4u, 3u);
    const uint of_head = wanted < 2u ? first_head + wanted : 4u + kv_head + (wanted == 3u ? 2u : 0u);
    const device uint* pairs = (const device uint*)(qkv + (ulong)sequence * 512u + of_head * 64u) + lane * 1u;
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      next[j] = pairs[j];
    }
  }
    const bool is_query = which < 2u, is_value = which == 3u;
    float x[2];
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      const float2 both = floats_of(given[j]);
      x[2 * j] = both.x;
      x[2 * j + 1] = both.y;
      given[j] = next[j];
    }
    float partner[2];
#pragma unroll
    for (uint j = 0; j < 2u; j++) {
      partner[j] = simd_shuffle(x[j], lane < 16u ? lane + 16u : lane - 16u);
    }
#pragma unroll
    for (uint j = 0; j < 2u; j++) {
      const Rotation turn = rotation_in(turns, lane * 2u + j);
      x[j] = is_value ? x[j] : x[j] * turn.cosine + partner[j] * turn.sine;
    }
    if (is_query) {
      const float factor = 0.180336878f;
      threadgroup uint* const to = (threadgroup uint*)queries + which * 64u + lane * 2u;
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        const uint upper = pack_bf16(x[2 * j] * factor, x[2 * j + 1] * factor);
        const float2 kept = floats_of(upper);
        to[2 * j] = upper;
        to[2 * j + 1] = pack_bf16(x[2 * j] * factor - kept.x, x[2 * j + 1] * factor - kept.y);
      }
    } else {
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        newest_pairs[(is_value ? 32u : 0u) + lane * 1u + j] = pack_bf16(x[2 * j], x[2 * j + 1]);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // The new token's scores: a simdgroup takes one head at a time, first those that have the fewest keys.
  MLXR_THREADGROUP(float, newest_score, 2);
  for (uint g = 3u - simd_gid; owner && g < 2u; g += 4u) {
    const threadgroup uint* q = (const threadgroup uint*)queries + g * 64u;
    float score = 0.0f;
    for (uint pair = lane; pair < 32u; pair += 32) {
      const float2 x = floats_of(q[2 * pair]) + floats_of(q[2 * pair + 1]), y = floats_of(newest_pairs[pair]);
      score += x.x * y.x + x.y * y.y;
    }
    score = simd_sum(score);
    if (lane == 0) {
      newest_score[g] = score;
    }
  }
  if (owner) {
    for (uint i = 127u - thread_index_in_threadgroup; i < 64u; i += 128u) {
      const bool of_value = i >= 32u;
      device bfloat16_t* const to = const_cast<device bfloat16_t*>(of_value ? v_arena : k_arena) + newest_row;
      ((device uint*)to)[i % 32u] = newest_pairs[i];
    }
  }

  // A lane's running results are those of head `group`; its sums are those of heads 2 quad and 2 quad + 1.
  float maximum = LOWEST;
  float total = 0.0f;
  float4 sums[4];
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    sums[i] = float4(0.0f);
  }
  uint4 query[4];
#pragma unroll
  for (uint c = 0; c < 4u; c++) {
    query[c] = queries[min(group, 1u) * 16u + c / 2 * 8 + quad * 2 + c % 2];
  }
#pragma unroll 1
  for (; first < end; first += 64u) {
    const uint next = first + 64u;
    float4 near_scores = float4(0.0f), far_scores = float4(0.0f);
#pragma unroll
    for (uint c = 0; c < 2u; c++) {
      near_scores = mma_bf16(query[2 * c], key[0][c].xy, near_scores, lane);
      far_scores = mma_bf16(query[2 * c], key[1][c].xy, far_scores, lane);
      near_scores = mma_bf16(query[2 * c + 1], key[0][c].zw, near_scores, lane);
      far_scores = mma_bf16(query[2 * c + 1], key[1][c].zw, far_scores, lane);
    }
    if (next < end) {
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint at = min(next + 8 * j + group, end - 1);
      const ulong row = arena_row((uint)table[(next) / 16u], of_layer, at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        key[j][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
    }
    // Of keys 2 quad, 2 quad + 1, 2 quad + 8 and 2 quad + 9: the sums of both parts of the query.
    float4 score = float4(near_scores.xy + near_scores.zw, far_scores.xy + far_scores.zw);
    // Keys past the end score LOWEST. Key `first` is never past it, so that each head's maximum is a key's score.
    const uint from = first + 2 * quad;
    score = float4(from < end ? score.x : LOWEST, from + 1 < end ? score.y : LOWEST, from + 8 < end ? score.z : LOWEST, from + 9 < end ? score.w : LOWEST);
    float largest = max(maximum, max(max(score.x, score.y), max(score.z, score.w)));
    largest = max(largest, simd_shuffle_xor(largest, (ushort)1));
    largest = max(largest, simd_shuffle_xor(largest, (ushort)2));
    const float keep = exp2(maximum - largest);
    maximum = largest;
    const float4 p = float4(exp2(score.x - largest), exp2(score.y - largest), exp2(score.z - largest), exp2(score.w - largest));
    total = total * keep + ((p.x + p.y) + (p.z + p.w));
    const float2 keeps = float2(simd_shuffle(keep, quad * 8), simd_shuffle(keep, quad * 8 + 4));
    if (keeps.x != 1.0f || keeps.y != 1.0f) {
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        sums[i] = sums[i] * float4(keeps.x, keeps.y, keeps.x, keeps.y);
      }
    }
    const uint2 weights = uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
    const float2 kept = floats_of(weights.x), also_kept = floats_of(weights.y);
    const uint2 more = uint2(pack_bf16(p.x - kept.x, p.y - kept.y), pack_bf16(p.z - also_kept.x, p.w - also_kept.y));
#pragma unroll
    for (uint d = 0; d < 1u; d++) {
      const uint4 v0 = value[0][d], v1 = value[1][d], v2 = value[2][d], v3 = value[3][d];
      {
        const uint4 a = uint4(lower_halves(v0.x, v1.x), upper_halves(v0.x, v1.x), lower_halves(v2.x, v3.x), upper_halves(v2.x, v3.x));
        sums[d * 4 + 0] = mma_bf16(a, weights, sums[d * 4 + 0], lane);
        sums[d * 4 + 0] = mma_bf16(a, more, sums[d * 4 + 0], lane);
      }
      {
        const uint4 a = uint4(lower_halves(v0.y, v1.y), upper_halves(v0.y, v1.y), lower_halves(v2.y, v3.y), upper_halves(v2.y, v3.y));
        sums[d * 4 + 1] = mma_bf16(a, weights, sums[d * 4 + 1], lane);
        sums[d * 4 + 1] = mma_bf16(a, more, sums[d * 4 + 1], lane);
      }
      {
        const uint4 a = uint4(lower_halves(v0.z, v1.z), upper_halves(v0.z, v1.z), lower_halves(v2.z, v3.z), upper_halves(v2.z, v3.z));
        sums[d * 4 + 2] = mma_bf16(a, weights, sums[d * 4 + 2], lane);
        sums[d * 4 + 2] = mma_bf16(a, more, sums[d * 4 + 2], lane);
      }
      {
        const uint4 a = uint4(lower_halves(v0.w, v1.w), upper_halves(v0.w, v1.w), lower_halves(v2.w, v3.w), upper_halves(v2.w, v3.w));
        sums[d * 4 + 3] = mma_bf16(a, weights, sums[d * 4 + 3], lane);
        sums[d * 4 + 3] = mma_bf16(a, more, sums[d * 4 + 3], lane);
      }
    }
    if (next < end) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const uint at = min(next + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(next) / 16u], of_layer, at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        value[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
      }
    }
    }
  }
  total += simd_shuffle_xor(total, (ushort)1);
  total += simd_shuffle_xor(total, (ushort)2);

  const uint active = min(4u, (end - begin + 15) / 16);  // simdgroups that had keys
  // Merge these, 2 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 8);
  MLXR_THREADGROUP(float, group_total, 8);
  MLXR_THREADGROUP(float4, group_sums, 136);
  // What threadgroups send to the one that finishes a part of the elements: its vectors of them, and each head's maximum and sum.
  MLXR_THREADGROUP(float4, sent, 32);
  MLXR_THREADGROUP(float2, sent_of, 4);
  MLXR_AWAIT_BEGIN()
  if (quad == 0 && group < 2u) {
    group_max[simd_gid * 2u + group] = maximum;
    group_total[simd_gid * 2u + group] = total;
  }
  if (simd_gid < active && 2 * quad + 0 < 2u) {
    threadgroup float4* const to = group_sums + simd_gid * 34u + (2 * quad + 0) * 17u + group * 2;
    to[0] = float4(sums[0].x, sums[0].z, sums[1].x, sums[1].z);
    to[1] = float4(sums[2].x, sums[2].z, sums[3].x, sums[3].z);
  }
  if (simd_gid < active && 2 * quad + 1 < 2u) {
    threadgroup float4* const to = group_sums + simd_gid * 34u + (2 * quad + 1) * 17u + group * 2;
    to[0] = float4(sums[0].y, sums[0].w, sums[1].y, sums[1].w);
    to[1] = float4(sums[2].y, sums[2].w, sums[3].y, sums[3].w);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 32u; i += 128u) {
    const uint g = i / 16u, at = i % 16u;
    float maxima[4];
    float largest = owner ? newest_score[g] : LOWEST;
#pragma unroll
    for (uint s = 0; s < 4u; s++) {
      maxima[s] = s < active ? group_max[s * 2u + g] : LOWEST;
      largest = max(largest, maxima[s]);
    }
    float sum = owner ? exp2(newest_score[g] - largest) : 0.0f;
    const threadgroup uint* newest_value = newest_pairs + 32 + 2 * at;
    const float2 newest_first = floats_of(newest_value[0]), newest_last = floats_of(newest_value[1]);
    float4 v = float4(newest_first.x, newest_first.y, newest_last.x, newest_last.y) * sum;
#pragma unroll
    for (uint s = 0; s < 4u; s++) {
      if (s < active) {
        const float weight = exp2(maxima[s] - largest);
        sum += group_total[s * 2u + g] * weight;
        v += group_sums[s * 34u + g * 17u + at] * weight;
      }
    }
    const uint vector = i, to = ranks == 1 ? 0 : vector / 16u;
    MLXR_SEND_VECTOR(sent + (rank * 16u + (vector - to * 16u)), to, v);
    if (at < ranks) {
      MLXR_SEND_PAIR(sent_of + (rank * 2u + g), at, float2(largest, sum));
    }
  }
  // Merge the threadgroups: each finishes a part of the elements.
  MLXR_AWAIT_SENT()
  const uint vectors = 32u / ranks;
  // Whole simdgroups, also where elements end, since their lanes shuffle.
  for (uint at = simd_gid * 32 + lane; at - lane < vectors * 2u; at += 128u) {
    const uint i = min(at, vectors * 2u - 1), r = i % 2u;
    const uint vector = rank * vectors + i / 2u, g = vector / 16u, head = first_head + g;
    const float2 of = r < ranks ? sent_of[r * 2u + g] : float2(LOWEST, 0.0f);
    const float most = of.x;
    float sum = of.y;
    float4 v = r < ranks ? sent[r * 16u + (vector - rank * 16u)] : float4(0.0f);
    float largest = most;
    largest = max(largest, simd_shuffle_xor(largest, (ushort)1));
    const float weight = exp2(most - largest);
    sum *= weight;
    v *= weight;
    sum += simd_shuffle_xor(sum, (ushort)1);
    // A lane gives others the elements that they add up.
    const bool has_last = r & 1u;
    const float2 given = has_last ? v.xy : v.zw;
    const float2 two = (has_last ? v.zw : v.xy) + float2(simd_shuffle_xor(given.x, (ushort)1), simd_shuffle_xor(given.y, (ushort)1));
    if (at == i) {
      const uint element = vector % 16u * 4 + r * 2;
      out[(ulong)sequence * 256u + head * 64u + element] = (bfloat16_t)(two.x / sum);
      out[(ulong)sequence * 256u + head * 64u + element + 1] = (bfloat16_t)(two.y / sum);
    }
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
