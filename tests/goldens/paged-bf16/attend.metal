// attend_e1bbbcf6
// small spec of a test
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 2 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 8 keys at a time, 4 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (1 KV heads, seqs) threadgroups of 8 simdgroups.
//   qkv        [seqs, 128] bf16: 2 query, 1 key, 1 value heads of 32
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 16 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [6, 1, 16, 1, 32] bf16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 64] bf16
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
constant float rope_frequencies[16] = {
  1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341325f,
  0.0316227749f, 0.0177827943f, 0.00999999978f, 0.00562341325f, 0.00316227763f, 0.00177827943f,
  0.00100000005f, 0.000562341302f, 0.000316227757f, 0.00017782794f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 16u;
  const uint pair = first ? element : element - 16u;
  const uint partner = first ? element + 16u : pair;
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
  return element % 16u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 16u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 16u : element - 16u};
}
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  return rotation_by(element, turns[pair_of(element)]);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 32u;
}
#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
#ifndef MLXR_STORE_UINT4  // a host's compiler may need telling to store 16 bytes at once
#define MLXR_STORE_UINT4(p, v) *(device uint4*)(p) = (v)
#endif
inline void turned_head(const device bfloat16_t* head, const threadgroup float2* turns, uint base, thread float4* to) {
  float4 own[2], other[2];
  load_bf16_8(head + base, own);
  const bool first = base < 16u;
  load_bf16_8(first ? head + base + 16u : head + base - 16u, other);
  const uint pair = first ? base : base - 16u;
#pragma unroll
  for (uint j = 0; j < 8; j++) {
    const float2 turn = turns[pair + j];
    to[j / 4][j % 4] = own[j / 4][j % 4] * turn.x + other[j / 4][j % 4] * (first ? -turn.y : turn.y);
  }
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_e1bbbcf6(
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
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = threadgroup_position_in_grid.x * 2u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const device bfloat16_t* input = qkv + (ulong)sequence * 128u;
  const bool owner = true;
  const uint begin = 0u;
  const uint end = position;
  const uint key_in_group = lane / 4u;
  const uint part = lane % 4u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    base[i] = (i / 2u * 4u + part) * 8u + i % 2u * 4u;
  }
  MLXR_THREADGROUP(float2, turns, 16);
  for (uint i = thread_index_in_threadgroup; i < 16u; i += 256u) {
    turns[i] = turn_of(i, (int)position);
  }
#ifndef MLXR_WANT  // a host may ask for bytes to come to a cache
#define MLXR_WANT(p, bytes)
#endif
  uint4 k_bits[1][1], v_bits[1][1];
  if (begin < end) {
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = begin + simd_gid * 8u + u * 8u + key_in_group;
      const uint at = wanted < end ? wanted : begin;
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 32u;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        k_bits[u][i] = *(const device uint4*)(k_arena + row + base[i * 2u]);
        v_bits[u][i] = *(const device uint4*)(v_arena + row + base[i * 2u]);
      }
    }
    // Rows of later turns come to the second-level cache; threadgroups that share keys share these, too.
    for (uint i = thread_index_in_threadgroup / 2u * 1u + threadgroup_position_in_grid.x % 1u + 64u; begin + i < end; i += 128u) {
      const uint at = begin + i;
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 32u;
      MLXR_WANT((thread_index_in_threadgroup % 2u == 0 ? k_arena : v_arena) + row, 64u);
    }
  } else {
    // What has no value there would take its registers from all that a step kernel runs.
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        k_bits[u][i] = v_bits[u][i] = uint4(0);
      }
    }
  }
  MLXR_AWAIT_INPUTS()
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 q[2][2];
  float4 values[2][2];
  float maximum[2];
  float total[2];
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
#pragma unroll
    for (uint i = 0; i < 2u; i += 2) {
      turned_head(input + (first_head + g) * 32u, turns, base[i], q[g] + i);
      q[g][i] *= 0.255034864f;
      q[g][i + 1] *= 0.255034864f;
    }
  }
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      values[g][i] = float4(0.0f);
    }
  }


  // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
  if (owner && simd_gid == 7u) {
    device bfloat16_t* k_out = const_cast<device bfloat16_t*>(k_arena);
    device bfloat16_t* v_out = const_cast<device bfloat16_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 16u, layer[0], slot % 16u) + kv_head * 32u;
    const device bfloat16_t* key = input + (2u + kv_head) * 32u;
    const device bfloat16_t* value = key + 32u;
    float score[2];
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 2u; i += 2) {
      float4 new_k[2], new_v[2];
      turned_head(key, turns, base[i], new_k);
      load_bf16_8(value + base[i], new_v);
      const uint4 k_bits = pack_bf16_8(new_k[0], new_k[1]), v_bits = pack_bf16_8(new_v[0], new_v[1]);
      if (key_in_group == 0) {
        MLXR_STORE_UINT4(k_out + row + base[i], k_bits);
        MLXR_STORE_UINT4(v_out + row + base[i], v_bits);
      }
      unpack_bf16(k_bits, new_k);
      unpack_bf16(v_bits, new_v);
#pragma unroll
      for (uint g = 0; g < 2u; g++) {
#pragma unroll
        for (uint j = 0; j < 8; j++) {
          score[g] += q[g][i + j / 4][j % 4] * new_k[j / 4][j % 4];
          values[g][i + j / 4][j % 4] = key_in_group == 0 ? new_v[j / 4][j % 4] : 0.0f;
        }
      }
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
#pragma unroll
      for (ushort offset = 2; offset > 0; offset /= 2) {
        score[g] += simd_shuffle_xor(score[g], offset);
      }
      maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
      total[g] = key_in_group == 0 ? 1.0f : 0.0f;
    }
  }

  for (uint first = begin + simd_gid * 8u; first < end; first += 64u) {
    // All loads of 1 key of a lane group, then their scores, then one change of maximum.
    bool valid[1];
    float4 key[1][2];
    if (first != begin + simd_gid * 8u) {
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 8u + key_in_group;
      const uint at = wanted < end ? wanted : begin;
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 32u;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        k_bits[u][i] = *(const device uint4*)(k_arena + row + base[i * 2u]);
        v_bits[u][i] = *(const device uint4*)(v_arena + row + base[i * 2u]);
      }
    }
    }
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      valid[u] = first + u * 8u + key_in_group < end;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        unpack_bf16(k_bits[u][i], key[u] + i * 2u);
      }
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      float score[1];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        float4 products = q[g][0] * key[u][0];
#pragma unroll
        for (uint i = 1; i < 2u; i++) {
          products += q[g][i] * key[u][i];
        }
        score[u] = sum4(products);
      }
#pragma unroll
      for (ushort offset = 2; offset > 0; offset /= 2) {
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
      for (uint i = 0; i < 2u; i++) {
        values[g][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
        total[g] += p;
        float4 of_key[2];
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          unpack_bf16(v_bits[u][i], of_key + i * 2u);
        }
#pragma unroll
        for (uint i = 0; i < 2u; i++) {
          values[g][i] += of_key[i] * p;
        }
      }
    }
  }

  // Merge the lane groups of a simdgroup ...
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
#pragma unroll
    for (ushort offset = 4; offset < 32; offset *= 2) {
      const float other = simd_shuffle_xor(maximum[g], offset);
      const float largest = max(maximum[g], other);
      const float mine = exp2(maximum[g] - largest);
      const float theirs = exp2(other - largest);
      maximum[g] = largest;
      total[g] = total[g] * mine + simd_shuffle_xor(total[g], offset) * theirs;
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          const float v = values[g][i][j];
          values[g][i][j] = v * mine + simd_shuffle_xor(v, offset) * theirs;
        }
      }
    }
  }
  // ... and the simdgroups, 2 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 16);
  MLXR_THREADGROUP(float, group_total, 16);
  MLXR_THREADGROUP(float, group_values, 512);
  if (lane == 0) {
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      group_max[simd_gid * 2u + g] = maximum[g];
      group_total[simd_gid * 2u + g] = total[g];
    }
  }
  if (key_in_group == 0) {
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          group_values[(simd_gid * 2u + g) * 32u + base[i] + j] = values[0u + g][i][j];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 64u; i += 256u) {
    const uint g = i / 32u;
    float largest = group_max[0u + g];
#pragma unroll
    for (uint s = 1; s < 8u; s++) {
      largest = max(largest, group_max[s * 2u + 0u + g]);
    }
    float sum = 0.0f;
    float v = 0.0f;
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      const float weight = exp2(group_max[s * 2u + 0u + g] - largest);
      sum += group_total[s * 2u + 0u + g] * weight;
      v += group_values[s * 64u + i] * weight;
    }
    const uint head = first_head + 0u + g;
    out[(ulong)sequence * 64u + head * 32u + i % 32u] = (bfloat16_t)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
