// gather_context_df853159
// small spec of a test
//
// K and V of the batch's only sequence, position by position, for MLX's attention. Only its rows of one layer are copied.
// Grid: ceil(context / 64) threadgroups of 256 threads.
//   context_lens  [seqs] i32: the context first
//   block_tables  [seqs, 16] i32
//   k_arena, v_arena  [32, 1, 4, 2, 32] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   keys, values  [context, 2, 32] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 64u;
}
// ---- kernel
[[kernel]] void gather_context_df853159(
  const device int32_t* context_lens [[buffer(0)]],
  const device int32_t* block_tables [[buffer(1)]],
  const device uint32_t* layer [[buffer(2)]],
  const device bfloat16_t* k_arena [[buffer(3)]],
  const device bfloat16_t* v_arena [[buffer(4)]],
  const device uint32_t* token [[buffer(5)]],
  device bfloat16_t* keys [[buffer(6)]],
  device bfloat16_t* values [[buffer(7)]],
  device uint32_t* token_out [[buffer(8)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint first = threadgroup_position_in_grid.x * 64u;
  const uint count = min(64u, (uint)context_lens[0] - first);
#pragma unroll 4
  for (uint i = thread_index_in_threadgroup; i < count * 16u; i += 256u) {
    const uint position = first + i / 16u;
    const uint chunk = i % 8u;
    const bool is_key = i / 8u % 2u == 0u;
    const ulong row = arena_row((uint)block_tables[(ulong)(0u) * 16u + (position) / 4u], layer[0], position % 4u);
    const device uint4* source = (const device uint4*)((is_key ? k_arena : v_arena) + row);
    device uint4* target = (device uint4*)(is_key ? keys : values);
    target[(ulong)position * 8u + chunk] = source[chunk];
  }
  if (threadgroup_position_in_grid.x == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
