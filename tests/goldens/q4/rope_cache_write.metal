// rope_cache_write_39fd6116
// small spec of a test
//
// Prefill: K is rotated, then K and V of each token go to the token's slot of the arena.
// The arena is written in place through its const inputs; `token` orders that write against every other access.
// Grid: one threadgroup of 64 threads a token.
//   qkv        [tokens, 384] f32: 2 query, 1 key heads of 96, 1 value heads of 96
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 4 + offset; -1 for padding tokens
//   k_arena    [30, 1, 4, 1, 104] q4_keys, written
//   v_arena    [30, 1, 4, 1, 80] q4, written
//     rows: groups of 32 numbers, int8 of K and 6 bits of V, then the groups' bf16 scales; number * scale, of V 4 * number *
//     scale, is the element of a group that was multiplied by the Hadamard matrix of 32 and 1/8
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
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
// ---- kernel
[[kernel]] void rope_cache_write_39fd6116(
  const device float* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device uint32_t* layer [[buffer(3)]],
  const device int8_t* k_arena [[buffer(4)]],
  const device uint8_t* v_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device int8_t* k_out = const_cast<device int8_t*>(k_arena);
  device uint8_t* v_out = const_cast<device uint8_t*>(v_arena);
  const uint t = threadgroup_position_in_grid.x;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const int position = positions[t];
  const ulong row = arena_row(slot / 4u, layer[0], slot % 4u);
  const ulong v_row = value_row(slot / 4u, layer[0], slot % 4u);
  const device float* key = qkv + (ulong)t * 384u + 192u;
  const device float* value = key + 96u;
  const uint lane = thread_index_in_simdgroup;
  for (uint r = simdgroup_index_in_threadgroup; r < 2u; r += 2u) {
    const bool is_key = r < 1u;
    const device float* head = is_key ? key + r * 96u : value + (r - 1u) * 96u;
    const uint elements = is_key ? 96u : 96u;
    float x[1][4];
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = (lane + 32u * i) * 4u + j;
        x[i][j] = 0.0f;
        if (element < elements) {
          x[i][j] = is_key ? rotate(head, element, rotation(element, position)) : (float)head[element];
        }
      }
    }
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      const float4 part = float4(x[i][0], x[i][1], x[i][2], x[i][3]);
      if (is_key) {
        q4_store_key(k_out + row + r * 104u, part, element, elements, lane, element < elements);
      } else {
        q4_store(v_out + v_row + (r - 1u) * 80u, part, element, elements, lane, element < elements);
      }
    }
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
