// rope_cache_write_e07a33b4
// small spec of a test
//
// Prefill: K and V of each token go to the token's slot of the arena.
// A simdgroup stores a row of K or V: it finds the largest magnitude for the row's scale, then rounds.
// The arena is written in place through its const inputs; `token` orders that write against every other access.
// Grid: one threadgroup of 64 threads a token.
//   qkv        [tokens, 128] f32: 2 query, 1 key, 1 value heads of 32
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 16 + offset; -1 for padding tokens
//   k_arena, v_arena  [3, 1, 16, 1, 36] q8, written
//     a row: 32 int8 numbers and their f32 scale; number * scale is the element
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

inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 36u;
}
// ---- kernel
[[kernel]] void rope_cache_write_e07a33b4(
  const device float* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device uint32_t* layer [[buffer(3)]],
  const device int8_t* k_arena [[buffer(4)]],
  const device int8_t* v_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device int8_t* k_out = const_cast<device int8_t*>(k_arena);
  device int8_t* v_out = const_cast<device int8_t*>(v_arena);
  const uint t = threadgroup_position_in_grid.x;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const ulong row = arena_row(slot / 16u, layer[0], slot % 16u);
  const device float* key = qkv + (ulong)t * 128u + 64u;
  const uint lane = thread_index_in_simdgroup;
  for (uint r = simdgroup_index_in_threadgroup; r < 2u; r += 2u) {
    const bool is_key = r < 1u;
    const device float* head = key + r * 32u;  // value heads follow the key heads
    float x[1][4];
    float largest = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = (lane + 32u * i) * 4u + j;
        x[i][j] = 0.0f;
        if (element < 32u) {
          x[i][j] = (float)head[element];
        }
        largest = max(largest, q8_magnitude(x[i][j]));
      }
    }
    const float scale = q8_scale(simd_max(largest));
    device int8_t* target = (is_key ? k_out : v_out) + row + r % 1u * 36u;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      if (element < 32u) {
        *(device char4*)(target + element) = char4(q8_number(x[i][0], scale), q8_number(x[i][1], scale),
                                                   q8_number(x[i][2], scale), q8_number(x[i][3], scale));
      }
    }
    if (lane == 0) {
      *(device float*)(target + 32) = scale;
    }
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
