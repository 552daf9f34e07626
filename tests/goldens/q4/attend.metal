// attend_5f1acc89
// small spec of a test
//
// Decode: RoPE, cache write and attention of one new token of each sequence, in one launch.
// One threadgroup serves one KV head of one sequence and all 3 query heads on it, so each byte of K and V is read
// once. A simdgroup takes 4 keys at a time, 8 lanes to a key; queries, sums and running maxima stay in registers.
// The new token's own K and V never come from the arena: one simdgroup rotates, uses and stores them, and no other
// touches that slot in this launch.
// Source: online softmax (Milakov and Gimelshein 2018), as in FlashAttention-2 and MLX's sdpa_vector; here a lane group
// of a simdgroup, not a whole simdgroup, owns a key.
// Grid: (2 KV heads, seqs) threadgroups of 8 simdgroups.
//   qkv        [seqs, 960] f32: 6 query, 2 key heads of 96, 2 value heads of 96
//   positions  [seqs] i32, of the new tokens
//   slots      [seqs] i32: block * 4 + offset, of the new tokens
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena    [20, 1, 4, 2, 100] q8, the new token's slot written in place
//   v_arena    [20, 1, 4, 2, 56] q4, the new token's slot written in place
//     a row: 96 int8 numbers and their f32 scale; number * scale is the element
//     a row of V: 3 groups of 32 4-bit numbers, 16 bytes each, then their f16 scales; (number - 8) * scale is the
//     element of a group that was multiplied by the Hadamard matrix of 32 and 1/8
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 576] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_q8(uint u, thread float4* v) { v[0] = float4(as_type<char4>(u)); }

inline void load_q8_4(const device int8_t* p, thread float4* v) { unpack_q8(*(const device uint*)p, v); }

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
inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
inline float q4_scale_of(const device uint8_t* row, uint element, uint dim) {
  return (float)*(const device half*)(row + dim / 2u + element / 32u * 2u);
}
inline float4 q4_load(const device uint8_t* row, uint element, uint dim) {
  const uint u = *(const device uint*)(row + element / 32u * 16u + element % 16u) >> (element % 32u / 16u * 4u);
  return (float4(as_type<uchar4>(u & 0x0f0f0f0fu)) - 8.0f) * q4_scale_of(row, element, dim);
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
inline float4 q4_store(device uint8_t* row, float4 v, uint element, uint dim, uint lane, bool stores) {
  const float4 x = q4_mix(v, lane) * 0.125f;
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
  const float extreme = high > -low ? high : low;
  const half stored = (half)(!metal::isfinite(low) ? NAN : extreme != 0.0f ? extreme * -0.125f : 0.0f);
  const float scale = (float)stored;
  uint codes = 0;
  float4 numbers;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    const float number = metal::abs(scale) > 0.0f ? metal::rint(metal::clamp(x[j] / scale, -8.0f, 7.0f)) : 0.0f;
    codes |= (uint)((int)number + 8) << (8u * j);
    numbers[j] = number * scale;
  }
  const uint upper = simd_shuffle_xor(codes, 4);
  if (stores && element % 32u < 16u) {
    *(device uint*)(row + element / 32u * 16u + element % 16u) = codes | upper << 4;
  }
  if (stores && element % 32u == 0u) {
    device half* scales = (device half*)(row + dim / 2u) + element / 32u;
    *scales = stored;
    if (element + 32u == dim && dim % 64u != 0u) {
      scales[1] = (half)0.0f;
    }
  }
  return numbers;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 200u;
}
inline ulong value_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 112u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_5f1acc89(
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
  const uint first_head = threadgroup_position_in_grid.x * 3u;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const device float* input = qkv + (ulong)sequence * 960u;
  const uint key_in_group = lane / 8u;
  const uint part = lane % 8u;

  // Float4 i of a lane holds elements base[i] .. base[i] + 3 of a head.
  uint base[3];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    base[i] = (i / 1u * 8u + part) * 4u + i % 1u * 4u;
  }
  float4 q[3][3];
  float4 values[3][3];
  float maximum[3];
  float total[3];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const Rotation r = rotation(base[i] + j, (int)position);
#pragma unroll
      for (uint g = 0; g < 3u; g++) {
        const device float* head = input + (first_head + g) * 96u;
        q[g][i][j] = rotate(head, base[i] + j, r) * 0.147244453f;
      }
    }
  }
#pragma unroll
  for (uint g = 0; g < 3u; g++) {
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      q[g][i] = q4_mix(q[g][i], lane) * 0.25f;
    }
  }
#pragma unroll
  for (uint g = 0; g < 3u; g++) {
    maximum[g] = LOWEST;
    total[g] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      values[g][i] = float4(0.0f);
    }
  }

  const bool owner = true;
  const uint begin = 0u;
  const uint end = position;

  // The new token: rotated, stored and attended to from registers.
  if (owner && simd_gid == 0) {
    device int8_t* k_out = const_cast<device int8_t*>(k_arena);
    device uint8_t* v_out = const_cast<device uint8_t*>(v_arena);
    const uint slot = (uint)slots[sequence];
    const ulong row =
        arena_row(slot / 4u, layer[0], slot % 4u) + kv_head * 100u;
    const ulong v_row =
        value_row(slot / 4u, layer[0], slot % 4u) + kv_head * 56u;
    const device float* key = input + (6u + kv_head) * 96u;
    const device float* value = input + 768u + kv_head * 96u;
    // The row's scales first: every lane group holds the whole head, so it finds them by itself.
    float rotated[3][4];
    float k_scale = 0.0f;
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        rotated[i][j] = rotate(key, element, rotation(element, (int)position));
      }
      const float4 mixed = q4_mix(float4(rotated[i][0], rotated[i][1], rotated[i][2], rotated[i][3]), lane) * 0.125f;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[i][j] = mixed[j];
        k_scale = max(k_scale, q8_magnitude(rotated[i][j]));
      }
    }
#pragma unroll
    for (ushort offset = 4; offset > 0; offset /= 2) {
      k_scale = max(k_scale, simd_shuffle_xor(k_scale, offset));
    }
    k_scale = q8_scale(k_scale);
    if (lane == 0) {
      *(device float*)(k_out + row + 96) = k_scale;
    }
    float score[3];
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
      score[g] = 0.0f;
    }
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = base[i] + j;
        const int8_t new_k = q8_number(rotated[i][j], k_scale);
        if (key_in_group == 0) {
          k_out[row + element] = new_k;
        }
#pragma unroll
        for (uint g = 0; g < 3u; g++) {
          score[g] += q[g][i][j] * (float)new_k;
        }
      }
    }
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      const uint element = base[i];
      const float4 new_v = q4_store(v_out + v_row, float4((float)value[element], (float)value[element + 1], (float)value[element + 2], (float)value[element + 3]),
                                    element, 96u, lane, key_in_group == 0);
#pragma unroll
      for (uint g = 0; g < 3u; g++) {
        values[g][i] = key_in_group == 0 ? new_v : float4(0.0f);
      }
    }
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
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
    float4 key[1][3];
    float4 value[1][3];
    float k_scale[1];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      const uint wanted = first + u * 32u + key_in_group;
      valid[u] = wanted < end;
      const uint at = valid[u] ? wanted : first;
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 100u;
      const ulong v_row = value_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 56u;
#pragma unroll
      for (uint i = 0; i < 3u; i += 1u) {
        load_q8_4(k_arena + row + base[i], key[u] + i);
      }
#pragma unroll
      for (uint i = 0; i < 3u; i += 1u) {
        value[u][i] = q4_load(v_arena + v_row, base[i], 96u);
      }
      k_scale[u] = *(const device float*)(k_arena + row + 96);
    }
#pragma unroll
    for (uint g = 0; g < 3u; g++) {
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
        score[u] *= k_scale[u];
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
  for (uint g = 0; g < 3u; g++) {
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
  // Sums of mixed values become sums of values.
#pragma unroll
  for (uint g = 0; g < 3u; g++) {
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      values[g][i] = q4_mix(values[g][i], lane) * 0.25f;
    }
  }
  // ... and the simdgroups, 3 query heads at a time.
  MLXR_THREADGROUP(float, group_max, 24);
  MLXR_THREADGROUP(float, group_total, 24);
  MLXR_THREADGROUP(float, group_values, 2304);
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
      for (uint i = 0; i < 3u; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          group_values[(simd_gid * 3u + g) * 96u + base[i] + j] = values[0u + g][i][j];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 288u; i += 256u) {
    const uint g = i / 96u;
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
      v += group_values[s * 288u + i] * weight;
    }
    const uint head = first_head + 0u + g;
    out[(ulong)sequence * 576u + head * 96u + i % 96u] = (float)(v / sum);
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
