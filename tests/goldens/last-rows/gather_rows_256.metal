// gather_rows_256_b3cf6494
// small spec of a test
//
// The rows whose logits are wanted.
// Grid: one threadgroup of 64 threads a row.
//   x     [tokens, 256] f32
//   rows  [rows] i32
//   out   [rows, 256] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void gather_rows_256_b3cf6494(
  const device float* x [[buffer(0)]],
  const device int32_t* rows [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const device float* from = x + (ulong)(uint)rows[threadgroup_position_in_grid.x] * 256u;
  device float* to = out + (ulong)threadgroup_position_in_grid.x * 256u;
  for (uint i = thread_index_in_threadgroup; i < 256u; i += 64u) {
    to[i] = from[i];
  }
}
