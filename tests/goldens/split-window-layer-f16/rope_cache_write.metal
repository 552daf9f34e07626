// rope_cache_write_e0286eff
// small spec of a test
//
// Prefill: K is rotated, then K and V of each token go to the token's slot of the arena.
// The arena is written in place through its const inputs; `token` orders that write against every other access.
// Grid: one threadgroup of 96 threads a token.
//   qkv        [tokens, 240] f16: 2 query, 2 key, 2 value heads of 40
//   positions  [tokens] i32
//   slots      [tokens] i32: block * 4 + offset; -1 for padding tokens
//   k_arena, v_arena  [1, 20, 4, 2, 40] f16, written
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
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)layer * 20u + block) * 4u + offset) * 80u;
}
// ---- kernel
[[kernel]] void rope_cache_write_e0286eff(
  const device float16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* slots [[buffer(2)]],
  const device uint32_t* layer [[buffer(3)]],
  const device float16_t* k_arena [[buffer(4)]],
  const device float16_t* v_arena [[buffer(5)]],
  const device uint32_t* token [[buffer(6)]],
  device uint32_t* token_out [[buffer(7)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  device float16_t* k_out = const_cast<device float16_t*>(k_arena);
  device float16_t* v_out = const_cast<device float16_t*>(v_arena);
  const uint t = threadgroup_position_in_grid.x;
  if (slots[t] < 0) {
    return;
  }
  const uint slot = (uint)slots[t];
  const int position = positions[t];
  const ulong row = arena_row(slot / 4u, layer[0], slot % 4u);
  const device float16_t* key = qkv + (ulong)t * 240u + 80u;
  const device float16_t* value = key + 80u;
  for (uint i = thread_index_in_threadgroup; i < 80u; i += 96u) {
    const uint element = i % 40u;
    k_out[row + i] = (float16_t)rotate(key + (i - element), element, rotation(element, position));
    v_out[row + i] = (float16_t)(float)value[i];
  }
  if (t == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
