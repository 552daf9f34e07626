// expert_sum_7c60502e
// small spec of a test
//
// out = residual + the sum of x over the 3 choices of a token.
// Grid: (1, tokens) threadgroups of 256 threads, one for each column.
//   x          [tokens * 3, 256] bf16
//   experts    [tokens, 3] i32; -1: another rank's, which has no result here
//   residual   [tokens, 256] bf16
//   out        [tokens, 256] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void expert_sum_7c60502e(
  const device bfloat16_t* x [[buffer(0)]],
  const device int32_t* experts [[buffer(1)]],
  const device bfloat16_t* residual [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint o = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup;
  const ulong row = threadgroup_position_in_grid.y;
  float y = 0.0f;
#pragma unroll
  for (uint slot = 0; slot < 3u; slot++) {
    const ulong choice = row * 3u + slot;
    if (experts[choice] < 0) {
      continue;
    }
    y += (float)x[choice * 256u + o];
  }
  const ulong place = row * 256u + o;
  y += (float)residual[place];
  out[place] = (bfloat16_t)y;
}
