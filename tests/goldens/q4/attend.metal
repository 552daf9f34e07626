// attend_46fe7596
// small spec of a test
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 2 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 4 keys at a time, 8 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (1 KV heads, seqs) threadgroups of 8 simdgroups.
//   qkv        [seqs, 384] f32: 2 query, 1 key heads of 96, 1 value heads of 96
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 4 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena    [30, 1, 4, 1, 104] q4_keys, the new token's slot written in place
//   v_arena    [30, 1, 4, 1, 80] q4, the new token's slot written in place
//     rows: groups of 32 numbers, int8 of K and 6 bits of V, then the groups' bf16 scales; number * scale, of V 4 * number *
//     scale, is the element of a group that was multiplied by the Hadamard matrix of 32 and 1/8
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 192] f32
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
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[48] = {
  1.0f, 0.825404167f, 0.681292057f, 0.562341332f, 0.464158893f, 0.383118689f,
  0.316227764f, 0.261015713f, 0.215443462f, 0.177827939f, 0.146779925f, 0.121152766f,
  0.100000001f, 0.0825404152f, 0.0681292042f, 0.0562341325f, 0.0464158878f, 0.0383118689f,
  0.0316227749f, 0.0261015724f, 0.0215443466f, 0.0177827943f, 0.014677993f, 0.0121152764f,
  0.00999999978f, 0.0082540419f, 0.00681292079f, 0.00562341325f, 0.00464158878f, 0.0038311868f,
  0.00316227763f, 0.00261015724f, 0.0021544348f, 0.00177827943f, 0.0014677993f, 0.00121152762f,
  0.00100000005f, 0.00082540419f, 0.000681292091f, 0.000562341302f, 0.000464158889f, 0.000383118691f,
  0.000316227757f, 0.000261015724f, 0.000215443462f, 0.00017782794f, 0.00014677993f, 0.000121152763f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 48u;
  const uint pair = first ? element : element - 48u;
  const uint partner = first ? element + 48u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device float* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float2 turn_of(uint pair, int position) {
  const Rotation r = rotation(pair, position);
  return float2(r.cosine, -r.sine);
}
inline uint pair_of(uint element) {
  return element % 48u;
}
inline Rotation rotation_by(uint element, float2 turn) {
  const bool first = element < 48u;
  return Rotation{turn.x, first ? -turn.y : turn.y, first ? element + 48u : element - 48u};
}
inline Rotation rotation_in(const threadgroup float2* turns, uint element) {
  return rotation_by(element, turns[pair_of(element)]);
}
inline float4 q4_load_key(const device int8_t* row, uint element, uint dim) {
  const float scale = as_type<float>((uint)*(const device ushort*)(row + dim + element / 32u * 2u) << 16);
  return float4(as_type<char4>(*(const device uint*)(row + element))) * scale;
}
inline float4 q4_load(const device uint8_t* row, uint element, uint dim) {
  const float scale = as_type<float>((uint)*(const device ushort*)(row + dim / 4u * 3u + element / 32u * 2u) << 16);
  const uint four = *(const device uint*)(row + element / 32u * 16u + element % 16u) << (4u - element % 32u / 16u * 4u);
  const uint two = *(const device uint*)(row + dim / 2u + element / 32u * 8u + element % 8u) >> (element % 32u / 8u * 2u);
  const uint u = ((four & 0xf0f0f0f0u) | (two & 0x03030303u) << 2) ^ 0x80808080u;
  // 2^23 + 128 plus a number: NVIDIA's GPUs convert a quarter as fast as they add.
  const float4 raised = float4(as_type<float>(0x4b000000u | (u & 255u)), as_type<float>(0x4b000000u | (u >> 8 & 255u)),
                               as_type<float>(0x4b000000u | (u >> 16 & 255u)), as_type<float>(0x4b000000u | u >> 24));
  return (raised - 8388736.0f) * scale;
}
inline float4 q4_mix(float4 v, uint lane) {
  const float4 a = float4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
  float4 x = float4(a.x + a.z, a.y + a.w, a.x - a.z, a.y - a.w);
#pragma unroll
  for (ushort offset = 1; offset < 8; offset *= 2) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const float other = simd_shuffle_xor((float)x[j], offset);
      x[j] = (lane & offset) != 0 ? other - x[j] : x[j] + other;
    }
  }
  return x;
}
// The least and the greatest of a group; the least is infinite if an element is no finite number.
inline float2 q4_extremes(float4 x) {
  float low = INFINITY;
  float high = -INFINITY;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    low = min(low, metal::isfinite((float)x[j]) ? (float)x[j] : -INFINITY);
    high = max(high, (float)x[j]);
  }
#pragma unroll
  for (ushort offset = 1; offset < 8; offset *= 2) {
    low = min(low, simd_shuffle_xor(low, offset));
    high = max(high, simd_shuffle_xor(high, offset));
  }
  return float2(low, high);
}
// A scale rounded to bf16.
inline float q4_scale(float exact, float2 extremes) {
  const uint bits = as_type<uint>(exact);
  const uint rounded = extremes.x == 0.0f && extremes.y == 0.0f ? 0u : (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  return as_type<float>(metal::isfinite(extremes.x) ? rounded : 0x7fc00000u);
}
inline void q4_store_scale(device ushort* scales, float scale, uint element, uint dim) {
  scales[element / 32u] = (ushort)(as_type<uint>(scale) >> 16);
  if (element + 32u == dim && dim % 64u != 0u) {
    scales[element / 32u + 1u] = 0;
  }
}
inline float4 q4_store_key(device int8_t* row, float4 v, uint element, uint dim, uint lane, bool stores) {
  const float4 x = q4_mix(v, lane) * 0.125f;
  const float2 extremes = q4_extremes(x);
  const float scale = q4_scale(max((float)extremes.y, -extremes.x) / 127.0f, extremes);
  float4 numbers;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    numbers[j] = scale > 0.0f ? metal::rint(metal::clamp(x[j] / scale, -127.0f, 127.0f)) : 0.0f;
  }
  if (stores) {
    *(device char4*)(row + element) = char4((int8_t)numbers.x, (int8_t)numbers.y, (int8_t)numbers.z, (int8_t)numbers.w);
  }
  if (stores && element % 32u == 0u) {
    q4_store_scale((device ushort*)(row + dim), scale, element, dim);
  }
  return numbers * scale;
}
inline float4 q4_store(device uint8_t* row, float4 v, uint element, uint dim, uint lane, bool stores) {
  const float4 x = q4_mix(v, lane) * 0.125f;
  const float2 extremes = q4_extremes(x);
  const float extreme = extremes.y > -extremes.x ? extremes.y : extremes.x;
  const float scale = q4_scale(extreme * -0.0078125f, extremes);
  const float step = scale * 4.0f;
  uint four = 0;
  uint two = 0;
  float4 numbers;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    numbers[j] = metal::abs(step) > 0.0f ? metal::rint(metal::clamp(x[j] / step, -32.0f, 31.0f)) : 0.0f;
    four |= ((uint)((int)numbers[j] + 32) >> 2 ^ 8u) << (8u * j);
    two |= ((uint)((int)numbers[j] + 32) & 3u) << (8u * j + lane % 8u / 2u * 2u);
  }
  two |= simd_shuffle_xor(two, 2);
  two |= simd_shuffle_xor(two, 4);
  const uint upper = simd_shuffle_xor(four, 4);
  if (stores && element % 32u < 16u) {
    *(device uint*)(row + element / 32u * 16u + element % 16u) = four | upper << 4;
  }
  if (stores && element % 32u < 8u) {
    *(device uint*)(row + dim / 2u + element / 32u * 8u + element % 8u) = two;
  }
  if (stores && element % 32u == 0u) {
    q4_store_scale((device ushort*)(row + dim / 4u * 3u), scale, element, dim);
  }
  return numbers * step;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 104u;
}
inline ulong value_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 80u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_46fe7596(
  const device float* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device int8_t* k_arena [[buffer(5)]],
  const device uint8_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device float* out [[buffer(8)]],
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
  const device float* input = qkv + (ulong)sequence * 384u;
  const bool owner = true;
  const uint begin = 0u;
  const uint end = position;
  const uint key_in_group = lane / 8u;
  const uint part = lane % 8u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[3];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    base[i] = (i / 1u * 8u + part) * 4u + i % 1u * 4u;
  }
  MLXR_THREADGROUP(float2, turns, 48);
  for (uint i = thread_index_in_threadgroup; i < 48u; i += 256u) {
    turns[i] = turn_of(i, (int)position);
  }
  MLXR_AWAIT_INPUTS()
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 q[2][3];
  float4 values[2][3];
  float maximum[2];
  float total[2];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const Rotation r = rotation_in(turns, base[i] + j);
#pragma unroll
      for (uint g = 0; g < 2u; g++) {
        const device float* head = input + (first_head + g) * 96u;
        q[g][i][j] = rotate(head, base[i] + j, r) * 0.147244453f;
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      q[g][i] = q4_mix(q[g][i], lane) * 0.25f;
    }
  }
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      values[g][i] = float4(0.0f);
    }
  }


  // The new token: rotated, stored and attended to from registers, by the simdgroup that has the fewest keys.
  if (owner && simd_gid == 7u) {
    device int8_t* k_out = const_cast<device int8_t*>(k_arena);
    device uint8_t* v_out = const_cast<device uint8_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 4u, layer[0], slot % 4u) + kv_head * 104u;
    const ulong v_row =
        value_row(slot / 4u, layer[0], slot % 4u) + kv_head * 80u;
    const device float* key = input + (2u + kv_head) * 96u;
    const device float* value = input + 288u + kv_head * 96u;
    float score[2];
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      float4 rotated;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[j] = rotate(key, base[i] + j, rotation_in(turns, base[i] + j));
      }
      const float4 new_k = q4_store_key(k_out + row, rotated, base[i], 96u, lane, key_in_group == 0);
#pragma unroll
      for (uint g = 0; g < 2u; g++) {
        score[g] += sum4(q[g][i] * new_k);
      }
    }
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      const uint element = base[i];
      const float4 new_v = q4_store(v_out + v_row, float4((float)value[element], (float)value[element + 1], (float)value[element + 2], (float)value[element + 3]),
                                    element, 96u, lane, key_in_group == 0);
#pragma unroll
      for (uint g = 0; g < 2u; g++) {
        values[g][i] = key_in_group == 0 ? new_v : float4(0.0f);
      }
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
#pragma unroll
      for (ushort offset = 4; offset > 0; offset /= 2) {
        score[g] += simd_shuffle_xor(score[g], offset);
      }
      maximum[g] = key_in_group == 0 ? score[g] : LOWEST;
      total[g] = key_in_group == 0 ? 1.0f : 0.0f;
    }
  }

  for (uint first = begin + simd_gid * 4u; first < end; first += 32u) {
    // All loads of 1 key of a lane group, then their scores, then one change of maximum.
    bool valid[1];
    float4 key[1][3];
    float4 value[1][3];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 4u + key_in_group;
      valid[u] = wanted < end;
      const uint at = valid[u] ? wanted : first;
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 104u;
      const ulong v_row = value_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 80u;
#pragma unroll
      for (uint i = 0; i < 3u; i++) {
        key[u][i] = q4_load_key(k_arena + row, base[i], 96u);
      }
#pragma unroll
      for (uint i = 0; i < 3u; i++) {
        value[u][i] = q4_load(v_arena + v_row, base[i], 96u);
      }
    }
#pragma unroll
    for (uint g = 0; g < 2u; g++) {
      float score[1];
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        float4 products = q[g][0] * key[u][0];
#pragma unroll
        for (uint i = 1; i < 3u; i++) {
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
        largest = valid[u] ? max(largest, score[u]) : largest;
      }
      const float keep = exp2(maximum[g] - largest);
      maximum[g] = largest;
      total[g] *= keep;
#pragma unroll
      for (uint i = 0; i < 3u; i++) {
        values[g][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 1u; u++) {
        const float p = valid[u] ? exp2(score[u] - largest) : 0.0f;
        total[g] += p;
#pragma unroll
        for (uint i = 0; i < 3u; i++) {
          values[g][i] += value[u][i] * p;
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
      for (uint i = 0; i < 3u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          const float v = values[g][i][j];
          values[g][i][j] = v * mine + simd_shuffle_xor(v, offset) * theirs;
        }
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 2u; g++) {
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      values[g][i] = q4_mix(values[g][i], lane) * 0.25f;
    }
  }
  // ... and the simdgroups, 2 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 16);
  MLXR_THREADGROUP(float, group_total, 16);
  MLXR_THREADGROUP(float, group_values, 1536);
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
      for (uint i = 0; i < 3u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          group_values[(simd_gid * 2u + g) * 96u + base[i] + j] = values[0u + g][i][j];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 192u; i += 256u) {
    const uint g = i / 96u;
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
      v += group_values[s * 192u + i] * weight;
    }
    const uint head = first_head + 0u + g;
    out[(ulong)sequence * 192u + head * 96u + i % 96u] = (float)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
