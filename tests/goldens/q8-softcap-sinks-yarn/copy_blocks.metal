// copy_blocks_536b58a1
// small spec of a test
//
// Copies whole blocks into the arena, every layer: blocks of the arena, before the step that writes into the copies
// (copy-on-write), or blocks that are restored.
// Grid: (copies, 1 layers) threadgroups of 32 threads, 8 bytes a thread at a time.
//   copies     [copies, 2] i32: source and target block; the source -1 - n is block n of `blocks`
//   blocks     [blocks, K and V, 1 layers, 88] u8
//   k_arena, v_arena  [80, 1, 1, 2, 44] q8, written
//   token, token_out  [8] u32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 1u + offset) * 88u;
}
// ---- kernel
[[kernel]] void copy_blocks_536b58a1(
  const device int32_t* copies [[buffer(0)]],
  const device uint8_t* blocks [[buffer(1)]],
  const device int8_t* k_arena [[buffer(2)]],
  const device int8_t* v_arena [[buffer(3)]],
  const device uint32_t* token [[buffer(4)]],
  device uint32_t* token_out [[buffer(5)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint copy = threadgroup_position_in_grid.x;
  const uint layer = threadgroup_position_in_grid.y;
  const int source = copies[2 * copy];
  const ulong target = arena_row((uint)copies[2 * copy + 1], layer, 0);
  const device uint2* k_from;
  const device uint2* v_from;
  if (source < 0) {
    k_from = (const device uint2*)blocks + ((ulong)(-1 - source) * 2u + layer) * 11u;
    v_from = k_from + 11u;
  } else {
    const ulong row = arena_row((uint)source, layer, 0);
    k_from = (const device uint2*)(k_arena + row);
    v_from = (const device uint2*)(v_arena + row);
  }
  device uint2* k_to = (device uint2*)(const_cast<device int8_t*>(k_arena) + target);
  device uint2* v_to = (device uint2*)(const_cast<device int8_t*>(v_arena) + target);
  for (uint i = thread_index_in_threadgroup; i < 11u; i += 32u) {
    k_to[i] = k_from[i];
    v_to[i] = v_from[i];
  }
  if (copy == 0 && layer == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
