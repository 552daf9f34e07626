// attention_inputs_c9db9c47
// small spec of a test
//
// The inputs of MLX's attention, for the batch's only sequence: its queries rotated, and K and V of its
// whole context from one layer of the arena. In a tile of 64 positions, threadgroup y = 0 copies K and V, and
// threadgroup y = 1 + i rotates the tile's token i: a thread has two neighbouring elements of every head that it takes.
// The tokens are the context's last ones, so there are no more of them than positions.
// Grid: ceil(context / 64) x 65 threadgroups of 256 threads.
//   qkv        [tokens, 384] bf16: 8 query, 2 key, 2 value heads of 32
//   positions  [tokens] i32
//   context_lens  [seqs] i32: the context first
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   layer      [8] u32: the layer first
//   k_arena, v_arena  [32, 1, 4, 2, 32] bf16
//   token, token_out  [8] u32
//   queries    [1, tokens, 8, 32] bf16
//   keys, values  [1, 2, context, 32] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
constant float rope_frequencies[16] = {
  1.0f, 0.351463318f, 0.079056941f, 0.0444569848f, 0.0250000004f, 0.0140585331f,
  0.00790569372f, 0.00444569858f, 0.00249999994f, 0.00140585331f, 0.000790569407f, 0.000444569858f,
  0.000250000012f, 0.000140585325f, 7.90569393e-05f, 4.44569851e-05f,
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
  const float sine = metal::precise::sin(angle) * 1.13862944f;
  return Rotation{metal::precise::cos(angle) * 1.13862944f, first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 64u;
}
// ---- kernel
[[kernel]] void attention_inputs_c9db9c47(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* positions [[buffer(1)]],
  const device int32_t* context_lens [[buffer(2)]],
  const device int32_t* block_tables [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device bfloat16_t* k_arena [[buffer(5)]],
  const device bfloat16_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device bfloat16_t* queries [[buffer(8)]],
  device bfloat16_t* keys [[buffer(9)]],
  device bfloat16_t* values [[buffer(10)]],
  device uint32_t* token_out [[buffer(11)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint first = threadgroup_position_in_grid.x * 64u;
  const uint context = (uint)context_lens[0];
  const device int* table = block_tables + 1 + (ulong)(0u) * (uint)block_tables[0];
  if (threadgroup_position_in_grid.y == 0) {
    const uint count = min(64u, context - first);
#pragma unroll 4
    for (uint i = thread_index_in_threadgroup; i < count * 16u; i += 256u) {
      const uint position = first + i / 16u;
      const uint chunk = i % 8u;
      const bool is_key = i / 8u % 2u == 0u;
      const ulong row = arena_row((uint)table[(position) / 4u], layer[0], position % 4u);
      const device uint4* source = (const device uint4*)((is_key ? k_arena : v_arena) + row);
      device uint4* target = (device uint4*)(is_key ? keys : values);
      target[((ulong)(chunk / 4u) * context + position) * 4u + chunk % 4u] = source[chunk];
    }
  } else {
    const uint t = first + threadgroup_position_in_grid.y - 1u;
    const uint head_first = thread_index_in_threadgroup / 16u;
    const bool rotates = t < context - (uint)positions[0] && head_first < 8u;
    if (rotates) {
      const uint element = thread_index_in_threadgroup % 16u * 2u;
      const int position = positions[t];
      const Rotation turns[2] = {rotation(element, position), rotation(element + 1u, position)};
      const device bfloat16_t* x = qkv + (ulong)t * 384u;
      device bfloat16_t* target = queries + (ulong)t * 256u + element;
      for (uint head = head_first; head < 8u; head += 8u) {
        const device bfloat16_t* source = x + head * 32u;
        *(device uint*)(target + head * 32u) = pack_bf16(
            rotate(source, element, turns[0]),
            rotate(source, element + 1u, turns[1]));
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
