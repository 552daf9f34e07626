// attend_many_mma_972c17b3
// small spec of a test
//
// Decode by matrix instructions: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 2 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 16 keys at a time: scores are K Q^T for 16 keys and 8 heads, values are V^T P^T. A lane reads 16
// bytes of K or V at a time, which permutes a head's dimensions: those of K and Q alike, and those of V are put back when
// results are stored. A query or a weight is the sum of two bf16 numbers, of which the second is what the first rounds off.
// The new token's own K and V never come from the arena: they are stored there, and added to the result at the end.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2.
// Grid: (2 KV heads, seqs) threadgroups of 8 simdgroups.
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
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 2u + layer) * 16u + offset) * 128u;
}
// The lower halves of two words, and the upper.
inline uint lower_halves(uint a, uint b) { return (a & 0xffffu) | b << 16; }
inline uint upper_halves(uint a, uint b) { return a >> 16 | (b & 0xffff0000u); }
// Transposes pairs. A lane gives pairs of heads 2 quad and 2 quad + 1, of keys group (x) and group + 8 (y). It gets pairs of
// head `group`: of keys 2 quad and 2 quad + 1 (x), and of those 8 further on (y).
inline uint2 turned(uint2 pairs, uint group, uint quad) {
  const uint from = quad * 8 + group / 2;
  const uint a = simd_shuffle(pairs.x, from), b = simd_shuffle(pairs.x, from + 4);
  const uint c = simd_shuffle(pairs.y, from), d = simd_shuffle(pairs.y, from + 4);
  return group % 2 ? uint2(upper_halves(a, b), upper_halves(c, d)) : uint2(lower_halves(a, b), lower_halves(c, d));
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_many_mma_972c17b3(
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
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 2u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const bool owner = true;
  const uint begin = 0u;
  const uint end = position;

  // Of 16 keys, a lane's parts of keys group and group + 8 and of values 2 quad, 2 quad + 1, 2 quad + 8 and 2 quad + 9.
  // Those of the next 16 are loaded as soon as these are used.
  uint4 key[2][2];
  uint4 value[4][1];
  uint first = begin + simd_gid * 16;
  if (first < end) {
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint at = min(first + 8 * j + group, end - 1);
      const ulong row = arena_row((uint)table[(first) / 16u], layer[0], at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        key[j][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const uint at = min(first + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(first) / 16u], layer[0], at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        value[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
      }
    }
  }
  MLXR_AWAIT_INPUTS()

  // In threadgroup memory: queries, two parts each, and the new token's K and V, as pairs.
  MLXR_THREADGROUP(uint4, queries, 32);
  MLXR_THREADGROUP(uint, newest_pairs, 64);
  for (uint i = thread_index_in_threadgroup; i < 128u; i += 256u) {
    const uint which = i / 32u, pair = i % 32u;
    const bool of_value = which == 3u;
    const uint place = which < 2u ? first_head + which : 4u + kv_head + (of_value ? 2u : 0u);
    const device bfloat16_t* head = qkv + (ulong)sequence * 512u + place * 64u;
    float2 x = float2((float)head[2 * pair], (float)head[2 * pair + 1]);
    if (!of_value) {
      x = float2(rotate(head, 2 * pair, rotation(2 * pair, (int)position)),
                 rotate(head, 2 * pair + 1, rotation(2 * pair + 1, (int)position)));
    }
    if (which < 2u) {
      const float factor = 0.180336878f;
      const uint upper = pack_bf16(x.x * factor, x.y * factor);
      const float2 kept = floats_of(upper);
      threadgroup uint* to = (threadgroup uint*)queries + which * 64u + pair;
      to[0] = upper;
      to[32] = pack_bf16(x.x * factor - kept.x, x.y * factor - kept.y);
    } else {
      const uint bits = pack_bf16(x.x, x.y);
      newest_pairs[pair + (of_value ? 32u : 0u)] = bits;
      if (owner) {
        const uint slot = (uint)slots[sequence];
        const ulong row =
            arena_row(slot / 16u, layer[0], slot % 16u) + kv_head * 64u;
        *(device uint*)(const_cast<device bfloat16_t*>(of_value ? v_arena : k_arena) + row + 2 * pair) = bits;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // A lane's running results are those of heads 2 quad and 2 quad + 1.
  float2 maximum = float2(LOWEST);
  float2 total = float2(0.0f);
  float4 sums[4];
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    sums[i] = float4(0.0f);
  }
  for (; first < end; first += 128u) {
    const uint next = first + 128u;
    float4 upper = float4(0.0f), lower = float4(0.0f);
#pragma unroll
    for (uint c = 0; c < 2u; c++) {
      const threadgroup uint4* q = queries + min(group, 1u) * 16u + c * 4 + quad;
      const uint4 a = uint4(key[0][c].x, key[1][c].x, key[0][c].y, key[1][c].y);
      const uint4 b = uint4(key[0][c].z, key[1][c].z, key[0][c].w, key[1][c].w);
      const uint4 most = q[0], least = q[8];
      upper = mma_bf16(a, most.xy, upper, lane);
      lower = mma_bf16(a, least.xy, lower, lane);
      upper = mma_bf16(b, most.zw, upper, lane);
      lower = mma_bf16(b, least.zw, lower, lane);
    }
    if (next < end) {
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint at = min(next + 8 * j + group, end - 1);
      const ulong row = arena_row((uint)table[(next) / 16u], layer[0], at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint c = 0; c < 2u; c++) {
        key[j][c] = *(const device uint4*)(k_arena + row + c * 32 + quad * 8);
      }
    }
    }
    // x and y belong to key group, z and w to key group + 8; x and z to head 2 quad, y and w to head 2 quad + 1.
    float4 score = upper + lower;
    // Keys past the end score LOWEST. Key `first` is never past it, so that each head's maximum is a key's score.
    score = float4(first + group < end ? score.xy : float2(LOWEST), first + group + 8 < end ? score.zw : float2(LOWEST));
    float2 largest = float2(max(maximum.x, max(score.x, score.z)), max(maximum.y, max(score.y, score.w)));
#pragma unroll
    for (ushort offset = 4; offset < 32; offset *= 2) {
      largest.x = max(largest.x, simd_shuffle_xor(largest.x, offset));
      largest.y = max(largest.y, simd_shuffle_xor(largest.y, offset));
    }
    const float2 keep = float2(exp2(maximum.x - largest.x), exp2(maximum.y - largest.y));
    maximum = largest;
    const float4 p = float4(exp2(score.x - largest.x), exp2(score.y - largest.y), exp2(score.z - largest.x), exp2(score.w - largest.y));
    total = total * keep + (p.xy + p.zw);
    if (keep.x != 1.0f || keep.y != 1.0f) {
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        sums[i] = sums[i] * float4(keep.x, keep.y, keep.x, keep.y);
      }
    }
    const uint2 rounded = uint2(pack_bf16(p.x, p.y), pack_bf16(p.z, p.w));
    const float2 kept = floats_of(rounded.x), also_kept = floats_of(rounded.y);
    const uint2 left = uint2(pack_bf16(p.x - kept.x, p.y - kept.y), pack_bf16(p.z - also_kept.x, p.w - also_kept.y));
    const uint2 weights = turned(rounded, group, quad), more = turned(left, group, quad);
    {
      const uint v0 = value[0][0].x, v1 = value[1][0].x, v2 = value[2][0].x, v3 = value[3][0].x;
      const uint4 a = uint4(lower_halves(v0, v1), upper_halves(v0, v1), lower_halves(v2, v3), upper_halves(v2, v3));
      sums[0] = mma_bf16(a, weights, sums[0], lane);
      sums[0] = mma_bf16(a, more, sums[0], lane);
    }
    {
      const uint v0 = value[0][0].y, v1 = value[1][0].y, v2 = value[2][0].y, v3 = value[3][0].y;
      const uint4 a = uint4(lower_halves(v0, v1), upper_halves(v0, v1), lower_halves(v2, v3), upper_halves(v2, v3));
      sums[1] = mma_bf16(a, weights, sums[1], lane);
      sums[1] = mma_bf16(a, more, sums[1], lane);
    }
    {
      const uint v0 = value[0][0].z, v1 = value[1][0].z, v2 = value[2][0].z, v3 = value[3][0].z;
      const uint4 a = uint4(lower_halves(v0, v1), upper_halves(v0, v1), lower_halves(v2, v3), upper_halves(v2, v3));
      sums[2] = mma_bf16(a, weights, sums[2], lane);
      sums[2] = mma_bf16(a, more, sums[2], lane);
    }
    {
      const uint v0 = value[0][0].w, v1 = value[1][0].w, v2 = value[2][0].w, v3 = value[3][0].w;
      const uint4 a = uint4(lower_halves(v0, v1), upper_halves(v0, v1), lower_halves(v2, v3), upper_halves(v2, v3));
      sums[3] = mma_bf16(a, weights, sums[3], lane);
      sums[3] = mma_bf16(a, more, sums[3], lane);
    }
    if (next < end) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const uint at = min(next + j / 2 * 8 + 2 * quad + j % 2, end - 1);
      const ulong row = arena_row((uint)table[(next) / 16u], layer[0], at % 16u) + kv_head * 64u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        value[j][d] = *(const device uint4*)(v_arena + row + d * 64 + group * 8);
      }
    }
    }
  }
#pragma unroll
  for (ushort offset = 4; offset < 32; offset *= 2) {
    total.x += simd_shuffle_xor(total.x, offset);
    total.y += simd_shuffle_xor(total.y, offset);
  }

  // The new token's scores: a simdgroup takes one head at a time.
  MLXR_THREADGROUP(float, newest_score, 2);
  for (uint g = simd_gid; g < 2u; g += 8u) {
    const threadgroup uint* q = (const threadgroup uint*)queries + g * 64u;
    float score = 0.0f;
    for (uint pair = lane; pair < 32u; pair += 32) {
      const float2 x = floats_of(q[pair]) + floats_of(q[pair + 32]), y = floats_of(newest_pairs[pair]);
      score += x.x * y.x + x.y * y.y;
    }
    score = simd_sum(score);
    if (lane == 0) {
      newest_score[g] = owner ? score : LOWEST;
    }
  }

  // Merge the simdgroups, 2 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 16);
  MLXR_THREADGROUP(float, group_total, 16);
  MLXR_THREADGROUP(float4, group_sums, 272);
  const threadgroup float* group_values = (const threadgroup float*)group_sums;
  if (group == 0) {
#pragma unroll
    for (uint e = 0; e < 2; e++) {
      if (2 * quad + e < 2u) {
        group_max[simd_gid * 2u + 2 * quad + e] = maximum[e];
        group_total[simd_gid * 2u + 2 * quad + e] = total[e];
      }
    }
  }
  if (2 * quad + 0 < 2u) {
    threadgroup float4* to = group_sums + (simd_gid * 2u + 2 * quad + 0) * 17u + group * 2;
    to[0] = float4(sums[0].x, sums[0].z, sums[1].x, sums[1].z);
    to[1] = float4(sums[2].x, sums[2].z, sums[3].x, sums[3].z);
  }
  if (2 * quad + 1 < 2u) {
    threadgroup float4* to = group_sums + (simd_gid * 2u + 2 * quad + 1) * 17u + group * 2;
    to[0] = float4(sums[0].y, sums[0].w, sums[1].y, sums[1].w);
    to[1] = float4(sums[2].y, sums[2].w, sums[3].y, sums[3].w);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 128u; i += 256u) {
    const uint g = i / 64u;
    float largest = group_max[0u + g];
#pragma unroll
    for (uint s = 1; s < 8u; s++) {
      largest = max(largest, group_max[s * 2u + 0u + g]);
    }
    const float newest = newest_score[0u + g];
    largest = max(largest, newest);
    float sum = 0.0f;
    float v = 0.0f;
    const float2 of_newest = floats_of(newest_pairs[32 + i % 64u / 2]);
    const float newest_weight = exp2(newest - largest);
    sum += newest_weight;
    v = (i % 2 == 0 ? of_newest.x : of_newest.y) * newest_weight;
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      const float weight = exp2(group_max[s * 2u + 0u + g] - largest);
      sum += group_total[s * 2u + 0u + g] * weight;
      v += group_values[s * 136u + g * 68u + i % 64u] * weight;
    }
    const uint head = first_head + 0u + g;
    out[(ulong)sequence * 256u + head * 64u + i % 64u] = (bfloat16_t)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
