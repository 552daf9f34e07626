// join_columns_1e82f95c
// small spec of a test
//
// Rows of several values, side by side.
// Grid: one threadgroup of 32 threads a token.
//   x    [tokens, 48] bf16
//   y    [tokens, 48] bf16
//   z    [tokens, 48] bf16
//   out  [tokens, 144] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void join_columns_1e82f95c(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* y [[buffer(1)]],
  const device bfloat16_t* z [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const ulong token = threadgroup_position_in_grid.x;
  device bfloat16_t* to = out + token * 144u;
  for (uint i = thread_index_in_threadgroup; i < 48u; i += 32u) {
    to[i] = x[token * 48u + i];
    to[i + 48u] = y[token * 48u + i];
    to[i + 96u] = z[token * 48u + i];
  }
}
