// down_adapted_2153a03a
// small spec of a test
//
// y = x + low @ lift[part, adapter] of each token's adapter, and the steps after the sums of a projection.
// Grid: (1, tokens) threadgroups of 256 threads, one for each output.
//   x            [tokens, 48] bf16
//   low          [tokens, 1, 8] f32; anything of tokens without an adapter
//   lift         by part: [3, 8, 48] f16
//   adapter_ids  [tokens] i32; -1: none
//   residual     [tokens, 48] bf16
//   out          [tokens, 48] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif

// ---- kernel
[[kernel]] void down_adapted_2153a03a(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* low [[buffer(1)]],
  const device float16_t* lift [[buffer(2)]],
  const device int32_t* adapter_ids [[buffer(3)]],
  const device bfloat16_t* residual [[buffer(4)]],
  device bfloat16_t* out [[buffer(5)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint o = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup;
  const ulong row = threadgroup_position_in_grid.y;
  if (o >= 48u) {
    return;
  }
  const int adapter = adapter_ids[row];
  float y = (float)x[row * 48u + o];
  if (adapter >= 0) {
    {
      const device float* by = low + row * 8u;
      const device float16_t* from = lift + (ulong)adapter * 384u + o;
      for (uint r = 0; r < 8u; r++) {
        y += by[r] * (float)from[r * 48u];
      }
    }
  }
  const ulong place = row * 48u + o;
  y += (float)residual[place];
  out[place] = (bfloat16_t)y;
}
