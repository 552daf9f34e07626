// attend_245fa5c2
// small spec of a test
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 1 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 32 keys at a time, 1 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (2 KV heads, seqs) threadgroups of 8 simdgroups.
//   qkv        [seqs, 240] f16: 2 query, 2 key, 2 value heads of 40
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 4 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [1, 20, 4, 2, 40] f16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 80] f16
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
inline float4 widen_f16(uint2 u) { return float4(float2(as_type<half2>(u.x)), float2(as_type<half2>(u.y))); }
inline void unpack_f16(uint4 u, thread float4* v) {
  v[0] = widen_f16(u.xy);
  v[1] = widen_f16(u.zw);
}

inline void load_f16_8(const device float16_t* p, thread float4* v) {
  unpack_f16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[10] = {
  1.0f, 0.398107171f, 0.158489317f, 0.0630957335f, 0.0251188651f, 0.00999999978f,
  0.00398107152f, 0.00158489321f, 0.000630957366f, 0.000251188641f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  if (element >= 20u) {
    return Rotation{1.0f, 0.0f, element};
  }
  const bool first = (element & 1u) == 0u;
  const uint pair = element >> 1;
  const uint partner = element ^ 1u;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device float16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float2 turn_of(uint pair, int position) {
  const Rotation r = rotation(2 * pair, position);
  return float2(r.cosine, -r.sine);
}
inline uint pair_of(uint element) {
  return element / 2;
}
inline Rotation rotation_by(uint element, float2 turn) {
  return Rotation{turn.x, element % 2 == 0 ? -turn.y : turn.y, element ^ 1u};
}
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  if (element >= 20u) {
    return Rotation{1.0f, 0.0f, element};
  }
  return rotation_by(element, turns[pair_of(element)]);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)layer * 20u + block) * 4u + offset) * 80u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_245fa5c2(
  const device float16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device float16_t* k_arena [[buffer(5)]],
  const device float16_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device float16_t* out [[buffer(8)]],
  device uint32_t* token_out [[buffer(9)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = threadgroup_position_in_grid.x * 1u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const device float16_t* input = qkv + (ulong)sequence * 240u;
  const bool owner = true;
  const uint begin = (position + 1 > 9u ? position + 1 - 9u : 0u);
  const uint end = position;
  const uint key_in_group = lane / 1u;
  const uint part = lane % 1u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[10];
#pragma unroll
  for (uint i = 0; i < 10u; i++) {
    base[i] = (i / 2u * 1u + part) * 8u + i % 2u * 4u;
  }
  MLXR_THREADGROUP(float2, turns, 10);
  for (uint i = thread_index_in_threadgroup; i < 10u; i += 256u) {
    turns[i] = turn_of(i, (int)position);
  }
#ifndef MLXR_WANT  // a host may ask for bytes to come to a cache
#define MLXR_WANT(p, bytes)
#endif
  uint4 k_bits[1][5], v_bits[1][5];
  if (begin < end) {
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = begin + simd_gid * 32u + u * 32u + key_in_group;
      const uint at = wanted < end ? wanted : begin;
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 40u;
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
        k_bits[u][i] = *(const device uint4*)(k_arena + row + base[i * 2u]);
        v_bits[u][i] = *(const device uint4*)(v_arena + row + base[i * 2u]);
      }
    }
    // Rows of later turns come to the second-level cache; threadgroups that share keys share these, too.
    for (uint i = thread_index_in_threadgroup / 2u * 1u + threadgroup_position_in_grid.x % 1u + 256u; begin + i < end; i += 128u) {
      const uint at = begin + i;
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 40u;
      MLXR_WANT((thread_index_in_threadgroup % 2u == 0 ? k_arena : v_arena) + row, 80u);
    }
  } else {
    // What has no value there would take its registers from all that a step kernel runs.
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
        k_bits[u][i] = v_bits[u][i] = uint4(0);
      }
    }
  }
  MLXR_AWAIT_INPUTS()
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 q[1][10];
  float4 values[1][10];
  float maximum[1];
  float total[1];
#pragma unroll
  for (uint i = 0; i < 10u; i++) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const Rotation r = rotation_in(turns, base[i] + j);
#pragma unroll
      for (uint g = 0; g < 1u; g++) {
        const device float16_t* head = input + (first_head + g) * 40u;
        q[g][i][j] = rotate(head, base[i] + j, r) * 0.22811012f;
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 1u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 10u; i++) {
      values[g][i] = float4(0.0f);
    }
  }


  // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
  if (owner && simd_gid == 7u) {
    device float16_t* k_out = const_cast<device float16_t*>(k_arena);
    device float16_t* v_out = const_cast<device float16_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 4u, layer[0], slot % 4u) + kv_head * 40u;
    const device float16_t* key = input + (2u + kv_head) * 40u;
    const device float16_t* value = key + 80u;
    float score[1];
#pragma unroll
    for (uint g = 0; g < 1u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 10u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        const float16_t new_k = (float16_t)rotate(key, element, rotation_in(turns, element));
        const float16_t new_v = (float16_t)(float)value[element];
        if (key_in_group == 0) {
          k_out[row + element] = new_k;
          v_out[row + element] = new_v;
        }
#pragma unroll
        for (uint g = 0; g < 1u; g++) {
          score[g] += q[g][i][j] * (float)new_k;
          values[g][i][j] = key_in_group == 0 ? (float)new_v : 0.0f;
        }
      }
    }
#pragma unroll
    for (uint g = 0; g < 1u; g++) {
#pragma unroll
      for (ushort offset = 0; offset > 0; offset /= 2) {
        score[g] += simd_shuffle_xor(score[g], offset);
      }
      maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
      total[g] = key_in_group == 0 ? 1.0f : 0.0f;
    }
  }

  for (uint first = begin + simd_gid * 32u; first < end; first += 256u) {
    // All loads of 1 key of a lane group, then their scores, then one change of maximum.
    bool valid[1];
    float4 key[1][10];
    if (first != begin + simd_gid * 32u) {
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 32u + key_in_group;
      const uint at = wanted < end ? wanted : begin;
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 40u;
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
        k_bits[u][i] = *(const device uint4*)(k_arena + row + base[i * 2u]);
        v_bits[u][i] = *(const device uint4*)(v_arena + row + base[i * 2u]);
      }
    }
    }
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      valid[u] = first + u * 32u + key_in_group < end;
#pragma unroll
      for (uint i = 0; i < 5u; i++) {
        unpack_f16(k_bits[u][i], key[u] + i * 2u);
      }
    }
#pragma unroll
    for (uint g = 0; g < 1u; g++) {
      float score[1];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        float4 products = q[g][0] * key[u][0];
#pragma unroll
        for (uint i = 1; i < 10u; i++) {
          products += q[g][i] * key[u][i];
        }
        score[u] = sum4(products);
      }
#pragma unroll
      for (ushort offset = 0; offset > 0; offset /= 2) {
#pragma unroll
        for (uint u = 0; u < 1u; u++) {
          score[u] += simd_shuffle_xor(score[u], offset);
        }
      }
      float largest = maximum[g];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        largest = valid[u] ? max(largest, score[u]) : largest;
      }
      const float keep = exp2(maximum[g] - largest);
      maximum[g] = largest;
      total[g] *= keep;
#pragma unroll
      for (uint i = 0; i < 10u; i++) {
        values[g][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
        total[g] += p;
        float4 of_key[10];
#pragma unroll
        for (uint i = 0; i < 5u; i++) {
          unpack_f16(v_bits[u][i], of_key + i * 2u);
        }
#pragma unroll
        for (uint i = 0; i < 10u; i++) {
          values[g][i] += of_key[i] * p;
        }
      }
    }
  }

  // Merge the lane groups of a simdgroup ...
#pragma unroll
  for (uint g = 0; g < 1u; g++) {
#pragma unroll
    for (ushort offset = 1; offset < 32; offset *= 2) {
      const float other = simd_shuffle_xor(maximum[g], offset);
      const float largest = max(maximum[g], other);
      const float mine = exp2(maximum[g] - largest);
      const float theirs = exp2(other - largest);
      maximum[g] = largest;
      total[g] = total[g] * mine + simd_shuffle_xor(total[g], offset) * theirs;
#pragma unroll
      for (uint i = 0; i < 10u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          const float v = values[g][i][j];
          values[g][i][j] = v * mine + simd_shuffle_xor(v, offset) * theirs;
        }
      }
    }
  }
  // ... and the simdgroups, 1 query head at a time.
  MLXR_THREADGROUP(float, group_max, 8);
  MLXR_THREADGROUP(float, group_total, 8);
  MLXR_THREADGROUP(float, group_values, 320);
  if (lane == 0) {
#pragma unroll
    for (uint g = 0; g < 1u; g++) {
      group_max[simd_gid * 1u + g] = maximum[g];
      group_total[simd_gid * 1u + g] = total[g];
    }
  }
  if (key_in_group == 0) {
#pragma unroll
    for (uint g = 0; g < 1u; g++) {
#pragma unroll
      for (uint i = 0; i < 10u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          group_values[(simd_gid * 1u + g) * 40u + base[i] + j] = values[0u + g][i][j];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 40u; i += 256u) {
    const uint g = i / 40u;
    float largest = group_max[0u + g];
#pragma unroll
    for (uint s = 1; s < 8u; s++) {
      largest = max(largest, group_max[s * 1u + 0u + g]);
    }
    float sum = 0.0f;
    float v = 0.0f;
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      const float weight = exp2(group_max[s * 1u + 0u + g] - largest);
      sum += group_total[s * 1u + 0u + g] * weight;
      v += group_values[s * 40u + i] * weight;
    }
    const uint head = first_head + 0u + g;
    out[(ulong)sequence * 80u + head * 40u + i % 40u] = (float16_t)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
