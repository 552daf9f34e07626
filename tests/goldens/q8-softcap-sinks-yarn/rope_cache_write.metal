// rope_cache_write_24e71186
// small spec of a test
//
// Prefill: K is rotated, then K and V of each token go to the token's slot of the arena.
// A simdgroup stores a row of K or V: it finds the largest magnitude for the row's scale, then rounds.
// The arena is written in place through its const inputs; `token` orders that write against every other access.
// Grid: one threadgroup of 128 threads a token.
//   qkv        [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 1 + offset; -1 for padding tokens
//   k_arena, v_arena  [80, 1, 1, 2, 44] q8, written
//     a row: 40 int8 numbers and their f32 scale; number * scale is the element
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
inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 1u + offset) * 88u;
}
// ---- kernel
[[kernel]] void rope_cache_write_24e71186(
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
  const int position = positions[t];
  const ulong row = arena_row(slot / 1u, layer[0], slot % 1u);
  const device float* key = qkv + (ulong)t * 400u + 240u;
  const uint lane = thread_index_in_simdgroup;
  for (uint r = simdgroup_index_in_threadgroup; r < 4u; r += 4u) {
    const bool is_key = r < 2u;
    const device float* head = key + r * 40u;  // value heads follow the key heads
    float x[1][4];
    float largest = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        const uint element = (lane + 32u * i) * 4u + j;
        x[i][j] = 0.0f;
        if (element < 40u) {
          x[i][j] = is_key ? rotate(head, element, rotation(element, position)) : (float)head[element];
        }
        largest = max(largest, q8_magnitude(x[i][j]));
      }
    }
    const float scale = q8_scale(simd_max(largest));
    device int8_t* target = (is_key ? k_out : v_out) + row + r % 2u * 44u;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      if (element < 40u) {
        *(device char4*)(target + element) = char4(q8_number(x[i][0], scale), q8_number(x[i][1], scale),
                                                   q8_number(x[i][2], scale), q8_number(x[i][3], scale));
      }
    }
    if (lane == 0) {
      *(device float*)(target + 40) = scale;
    }
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
