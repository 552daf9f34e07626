// attend_partition_12346249
// small spec of a test
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch, by partitions of the context.
// One threadgroup serves one KV head of one sequence and all 3 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 16 keys at a time, 2 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Split-KV: the context inside the window is cut into partitions of equal length, the smallest multiple of 16 that gives at
// most 3 of them; threadgroups past the last one do nothing. The partition that holds the new token owns its slot.
// Results are partial (sum, maximum, weighted values); the reduction kernel merges them.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (2 KV heads, seqs, 3 partitions) threadgroups of 8 simdgroups.
//   qkv        [seqs, 400] f32: 6 query, 2 key, 2 value heads of 40
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 1 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [80, 1, 1, 2, 44] q8, the new token's slot written in place
//     a row: 40 int8 numbers and their f32 scale; number * scale is the element
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   partial    [seqs, 6, 3, 40] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused (MLX wants 8 elements or more)
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
inline void unpack_q8(uint u, thread float4* v) { v[0] = float4(as_type<char4>(u)); }

inline void load_q8_4(const device int8_t* p, thread float4* v) { unpack_q8(*(const device uint*)p, v); }

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[20] = {
  1.0f, 0.473217994f, 0.199053586f, 0.062797159f, 0.0396223292f, 0.0250000004f,
  0.0157739334f, 0.00995267928f, 0.00627971627f, 0.0039622332f, 0.00249999994f, 0.00157739338f,
  0.000995267881f, 0.000627971604f, 0.000396223302f, 0.000250000012f, 0.000157739341f, 9.9526791e-05f,
  6.27971604e-05f, 3.96223295e-05f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 20u;
  const uint pair = first ? element : element - 20u;
  const uint partner = first ? element + 20u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle) * 1.29999995f;
  return Rotation{metal::precise::cos(angle) * 1.29999995f, first ? -sine : sine, partner};
}

inline float rotate(const device float* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float2 turn_of(uint pair, int position) {
  const Rotation r = rotation(pair, position);
  return float2(r.cosine, -r.sine);
}
inline uint pair_of(uint element) {
  return element % 20u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 20u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 20u : element - 20u};
}
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  return rotation_by(element, turns[pair_of(element)]);
}
inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 1u + offset) * 88u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_partition_12346249(
  const device float* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device int8_t* k_arena [[buffer(5)]],
  const device int8_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device float* partial [[buffer(8)]],
  device float* stats [[buffer(9)]],
  device uint32_t* token_out [[buffer(10)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = threadgroup_position_in_grid.x * 3u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const device float* input = qkv + (ulong)sequence * 400u;
  const uint partition = threadgroup_position_in_grid.z;
  const uint start = (position + 1 > 9u ? position + 1 - 9u : 0u);
  const uint length = (position - start) / 48u * 16u + 16u;
  const uint begin = start + partition * length;
  if (begin > position) {
    return;
  }
  const bool owner = position - begin < length;
  const uint end = min(begin + length, position);
  const uint key_in_group = lane / 2u;
  const uint part = lane % 2u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[5];
#pragma unroll
  for (uint i = 0; i < 5u; i++) {
    base[i] = (i / 1u * 2u + part) * 4u + i % 1u * 4u;
  }
  MLXR_THREADGROUP(float2, turns, 20);
  for (uint i = thread_index_in_threadgroup; i < 20u; i += 256u) {
    turns[i] = turn_of(i, (int)position);
  }
  MLXR_AWAIT_INPUTS()
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float temperature = 1.0f + 0.100000001f * metal::precise::log(1.0f + (float)(position / 16u));
  float4 q[3][5];
  float4 values[3][5];
  float maximum[3];
  float total[3];
#pragma unroll
  for (uint i = 0; i < 5u; i++) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const Rotation r = rotation_in(turns, base[i] + j);
#pragma unroll
      for (uint g = 0; g < 3u; g++) {
        const device float* head = input + (first_head + g) * 40u;
        q[g][i][j] = rotate(head, base[i] + j, r) * 0.0316227749f * temperature;
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 3u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 5u; i++) {
      values[g][i] = float4(0.0f);
    }
  }


  // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
  if (owner && simd_gid == 7u) {
    device int8_t* k_out = const_cast<device int8_t*>(k_arena);
    device int8_t* v_out = const_cast<device int8_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 1u, layer[0], slot % 1u) + kv_head * 44u;
    const device float* key = input + (6u + kv_head) * 40u;
    const device float* value = key + 80u;
    // The row's scales first: every lane group holds the whole head, so it finds them by itself.
    float rotated[5][4];
    float k_scale = 0.0f;
    float v_scale = 0.0f;
#pragma unroll
    for (uint i = 0; i < 5u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        rotated[i][j] = rotate(key, element, rotation_in(turns, element));
        k_scale = max(k_scale, q8_magnitude(rotated[i][j]));
        v_scale = max(v_scale, q8_magnitude((float)value[element]));
      }
    }
#pragma unroll
    for (ushort offset = 1; offset > 0; offset /= 2) {
      k_scale = max(k_scale, simd_shuffle_xor(k_scale, offset));
      v_scale = max(v_scale, simd_shuffle_xor(v_scale, offset));
    }
    k_scale = q8_scale(k_scale);
    v_scale = q8_scale(v_scale);
    if (lane == 0) {
      *(device float*)(k_out + row + 40) = k_scale;
      *(device float*)(v_out + row + 40) = v_scale;
    }
    float score[3];
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 5u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        const int8_t new_k = q8_number(rotated[i][j], k_scale);
        const int8_t new_v = q8_number((float)value[element], v_scale);
        if (key_in_group == 0) {
          k_out[row + element] = new_k;
          v_out[row + element] = new_v;
        }
#pragma unroll
        for (uint g = 0; g < 3u; g++) {
          score[g] += q[g][i][j] * (float)new_k;
          values[g][i][j] = key_in_group == 0 ? (float)new_v * v_scale : 0.0f;
        }
      }
    }
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
#pragma unroll
      for (ushort offset = 1; offset > 0; offset /= 2) {
        score[g] += simd_shuffle_xor(score[g], offset);
      }
      score[g] *= k_scale;
      score[g] = 7.21347523f * metal::precise::tanh(score[g]);
      maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
      total[g] = key_in_group == 0 ? 1.0f : 0.0f;
    }
  }

  for (uint first = begin + simd_gid * 16u; first < end; first += 128u) {
    // All loads of 1 key of a lane group, then their scores, then one change of maximum.
    bool valid[1];
    float4 key[1][5];
    float4 value[1][5];
    float k_scale[1];
    float v_scale[1];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 16u + key_in_group;
      valid[u] = wanted < end;
      const uint at = valid[u] ? wanted : first;
      const ulong row = arena_row((uint)table[(at) / 1u], layer[0], at % 1u) + kv_head * 44u;
#pragma unroll
      for (uint i = 0; i < 5u; i += 1u) {
        load_q8_4(k_arena + row + base[i], key[u] + i);
        load_q8_4(v_arena + row + base[i], value[u] + i);
      }
      k_scale[u] = *(const device float*)(k_arena + row + 40);
      v_scale[u] = *(const device float*)(v_arena + row + 40);
    }
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
      float score[1];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        float4 products = q[g][0] * key[u][0];
#pragma unroll
        for (uint i = 1; i < 5u; i++) {
          products += q[g][i] * key[u][i];
        }
        score[u] = sum4(products);
      }
#pragma unroll
      for (ushort offset = 1; offset > 0; offset /= 2) {
#pragma unroll
        for (uint u = 0; u < 1u; u++) {
          score[u] += simd_shuffle_xor(score[u], offset);
        }
      }
      float largest = maximum[g];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        score[u] *= k_scale[u];
        score[u] = 7.21347523f * metal::precise::tanh(score[u]);
        largest = valid[u] ? max(largest, score[u]) : largest;
      }
      const float keep = exp2(maximum[g] - largest);
      maximum[g] = largest;
      total[g] *= keep;
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
        values[g][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
        total[g] += p;
#pragma unroll
        for (uint i = 0; i < 5u; i++) {
          values[g][i] += value[u][i] * (p * v_scale[u]);
        }
      }
    }
  }

  // Merge the lane groups of a simdgroup ...
#pragma unroll
  for (uint g = 0; g < 3u; g++) {
#pragma unroll
    for (ushort offset = 2; offset < 32; offset *= 2) {
      const float other = simd_shuffle_xor(maximum[g], offset);
      const float largest = max(maximum[g], other);
      const float mine = exp2(maximum[g] - largest);
      const float theirs = exp2(other - largest);
      maximum[g] = largest;
      total[g] = total[g] * mine + simd_shuffle_xor(total[g], offset) * theirs;
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          const float v = values[g][i][j];
          values[g][i][j] = v * mine + simd_shuffle_xor(v, offset) * theirs;
        }
      }
    }
  }
  // ... and the simdgroups, 3 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 24);
  MLXR_THREADGROUP(float, group_total, 24);
  MLXR_THREADGROUP(float, group_values, 960);
  if (lane == 0) {
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
      group_max[simd_gid * 3u + g] = maximum[g];
      group_total[simd_gid * 3u + g] = total[g];
    }
  }
  if (key_in_group == 0) {
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          group_values[(simd_gid * 3u + g) * 40u + base[i] + j] = values[0u + g][i][j];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 120u; i += 256u) {
    const uint g = i / 40u;
    float largest = group_max[0u + g];
#pragma unroll
    for (uint s = 1; s < 8u; s++) {
      largest = max(largest, group_max[s * 3u + 0u + g]);
    }
    float sum = 0.0f;
    float v = 0.0f;
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      const float weight = exp2(group_max[s * 3u + 0u + g] - largest);
      sum += group_total[s * 3u + 0u + g] * weight;
      v += group_values[s * 120u + i] * weight;
    }
    const uint head = first_head + 0u + g;
    const ulong place = ((ulong)sequence * 6u + head) * 3u + partition;
    partial[place * 40u + i % 40u] = v;
    if (i % 40u == 0) {
      stats[place * 4] = largest;
      stats[place * 4 + 1] = sum;
    }
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && partition == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
