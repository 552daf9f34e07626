// attend_8fa14906
// small spec of a test
//
// Decode: cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 2 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 4 keys at a time, 8 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (1 KV heads, seqs) threadgroups of 8 simdgroups.
//   qkv        [seqs, 128] f32: 2 query, 1 key, 1 value heads of 32
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 16 + offset, of the new tokens
//   k_arena, v_arena  [3, 1, 16, 1, 36] q8, the new token's slot written in place
//     a row: 32 int8 numbers and their f32 scale; number * scale is the element
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 64] f32
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

inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 36u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_8fa14906(
  const device float* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device uint32_t* layer [[buffer(3)]],
  const device int8_t* k_arena [[buffer(4)]],
  const device int8_t* v_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device float* out [[buffer(7)]],
  device uint32_t* token_out [[buffer(8)]],
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
  const device float* input = qkv + (ulong)sequence * 128u;
  const bool owner = true;
  const uint begin = 0u;
  const uint end = position;
  const uint key_in_group = lane / 8u;
  const uint part = lane % 8u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    base[i] = (i / 1u * 8u + part) * 4u + i % 1u * 4u;
  }
  MLXR_AWAIT_INPUTS()
  float4 q[2][1];
  float4 values[2][1];
  float maximum[2];
  float total[2];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
#pragma unroll
      for (uint g = 0; g < 2u; g++) {
        const device float* head = input + (first_head + g) * 32u;
        q[g][i][j] = (float)head[base[i] + j] * 0.255034864f;
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      values[g][i] = float4(0.0f);
    }
  }


  // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
  if (owner && simd_gid == 7u) {
    device int8_t* k_out = const_cast<device int8_t*>(k_arena);
    device int8_t* v_out = const_cast<device int8_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 16u, layer[0], slot % 16u) + kv_head * 36u;
    const device float* key = input + (2u + kv_head) * 32u;
    const device float* value = key + 32u;
    // The row's scales first: every lane group holds the whole head, so it finds them by itself.
    float rotated[1][4];
    float k_scale = 0.0f;
    float v_scale = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        rotated[i][j] = (float)key[element];
        k_scale = max(k_scale, q8_magnitude(rotated[i][j]));
        v_scale = max(v_scale, q8_magnitude((float)value[element]));
      }
    }
#pragma unroll
    for (ushort offset = 4; offset > 0; offset /= 2) {
      k_scale = max(k_scale, simd_shuffle_xor(k_scale, offset));
      v_scale = max(v_scale, simd_shuffle_xor(v_scale, offset));
    }
    k_scale = q8_scale(k_scale);
    v_scale = q8_scale(v_scale);
    if (lane == 0) {
      *(device float*)(k_out + row + 32) = k_scale;
      *(device float*)(v_out + row + 32) = v_scale;
    }
    float score[2];
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
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
        for (uint g = 0; g < 2u; g++) {
          score[g] += q[g][i][j] * (float)new_k;
          values[g][i][j] = key_in_group == 0 ? (float)new_v * v_scale : 0.0f;
        }
      }
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
#pragma unroll
      for (ushort offset = 4; offset > 0; offset /= 2) {
        score[g] += simd_shuffle_xor(score[g], offset);
      }
      score[g] *= k_scale;
      maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
      total[g] = key_in_group == 0 ? 1.0f : 0.0f;
    }
  }

  for (uint first = begin + simd_gid * 4u; first < end; first += 32u) {
    // All loads of 1 key of a lane group, then their scores, then one change of maximum.
    bool valid[1];
    float4 key[1][1];
    float4 value[1][1];
    float k_scale[1];
    float v_scale[1];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 4u + key_in_group;
      valid[u] = wanted < end;
      const uint at = valid[u] ? wanted : first;
      const ulong row = arena_row((at) / 16u, layer[0], at % 16u) + kv_head * 36u;
#pragma unroll
      for (uint i = 0; i < 1u; i += 1u) {
        load_q8_4(k_arena + row + base[i], key[u] + i);
        load_q8_4(v_arena + row + base[i], value[u] + i);
      }
      k_scale[u] = *(const device float*)(k_arena + row + 32);
      v_scale[u] = *(const device float*)(v_arena + row + 32);
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      float score[1];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        float4 products = q[g][0] * key[u][0];
#pragma unroll
        for (uint i = 1; i < 1u; i++) {
          products += q[g][i] * key[u][i];
        }
        score[u] = sum4(products);
      }
#pragma unroll
      for (ushort offset = 4; offset > 0; offset /= 2) {
#pragma unroll
        for (uint u = 0; u < 1u; u++) {
          score[u] += simd_shuffle_xor(score[u], offset);
        }
      }
      float largest = maximum[g];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        score[u] *= k_scale[u];
        largest = valid[u] ? max(largest, score[u]) : largest;
      }
      const float keep = exp2(maximum[g] - largest);
      maximum[g] = largest;
      total[g] *= keep;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        values[g][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
        total[g] += p;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          values[g][i] += value[u][i] * (p * v_scale[u]);
        }
      }
    }
  }

  // Merge the lane groups of a simdgroup ...
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
#pragma unroll
    for (ushort offset = 8; offset < 32; offset *= 2) {
      const float other = simd_shuffle_xor(maximum[g], offset);
      const float largest = max(maximum[g], other);
      const float mine = exp2(maximum[g] - largest);
      const float theirs = exp2(other - largest);
      maximum[g] = largest;
      total[g] = total[g] * mine + simd_shuffle_xor(total[g], offset) * theirs;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
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
      for (uint i = 0; i < 1u; i++) {
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
    out[(ulong)sequence * 64u + head * 32u + i % 32u] = (float)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
