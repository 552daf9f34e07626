// rope_cache_write_9883b6c9
// small spec of a test
//
// Prefill: K is rotated, then K and V of each token go to the token's slot of the arena.
// The arena is written in place through its const inputs; `token` orders that write against every other access.
// Grid: one threadgroup of 32 threads a token.
//   qkv        [tokens, 128] bf16: 2 query, 1 key, 1 value heads of 32
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 16 + offset; -1 for padding tokens
//   k_arena, v_arena  [6, 1, 16, 1, 32] bf16, written
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
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 32u;
}
// ---- kernel
[[kernel]] void rope_cache_write_9883b6c9(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device uint32_t* layer [[buffer(3)]],
  const device bfloat16_t* k_arena [[buffer(4)]],
  const device bfloat16_t* v_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device bfloat16_t* k_out = const_cast<device bfloat16_t*>(k_arena);
  device bfloat16_t* v_out = const_cast<device bfloat16_t*>(v_arena);
  const uint t = threadgroup_position_in_grid.x;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const int position = positions[t];
  const ulong row = arena_row(slot / 16u, layer[0], slot % 16u);
  const device bfloat16_t* key = qkv + (ulong)t * 128u + 64u;
  const device bfloat16_t* value = key + 32u;
  // All elements of a thread have one place in their heads.
  const Rotation turn = rotation(thread_index_in_threadgroup % 32u, position);
  for (uint i = thread_index_in_threadgroup; i < 32u; i += 32u) {
    const uint element = i % 32u;
    k_out[row + i] = (bfloat16_t)rotate(key + (i - element), element, turn);
    v_out[row + i] = (bfloat16_t)(float)value[i];
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
