// qkv_adapted_2abe9125
// small spec of a test
//
// y = x + low @ lift[part, adapter] of each token's adapter, and the steps after the sums of a projection.
// Grid: (1, tokens) threadgroups of 256 threads, one for each output.
//   x            [tokens, 128] bf16
//   low          [tokens, 3, 8] f32; anything of tokens without an adapter
//   lift         by part: [3, 8, 64], [3, 8, 32], [3, 8, 32] f16
//   adapter_ids  [tokens] i32; -1: none
//   out          [tokens, 128] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif

// ---- kernel
[[kernel]] void qkv_adapted_2abe9125(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* low [[buffer(1)]],
  const device float16_t* lift [[buffer(2)]],
  const device int32_t* adapter_ids [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint o = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup;
  const ulong row = threadgroup_position_in_grid.y;
  if (o >= 128u) {
    return;
  }
  const int adapter = adapter_ids[row];
  float y = (float)x[row * 128u + o];
  if (adapter >= 0) {
    if (o < 64u) {
      const device float* by = low + row * 24u;
      const device float16_t* from = lift + (ulong)adapter * 512u + o;
      for (uint r = 0; r < 8u; r++) {
        y += by[r] * (float)from[r * 64u];
      }
    } else
    if (o < 96u) {
      const device float* by = low + row * 24u + 8u;
      const device float16_t* from = lift + 1536u + (ulong)adapter * 256u + o - 64u;
      for (uint r = 0; r < 8u; r++) {
        y += by[r] * (float)from[r * 32u];
      }
    } else
    {
      const device float* by = low + row * 24u + 16u;
      const device float16_t* from = lift + 2304u + (ulong)adapter * 256u + o - 96u;
      for (uint r = 0; r < 8u; r++) {
        y += by[r] * (float)from[r * 32u];
      }
    }
  }
  const ulong place = row * 128u + o;
  out[place] = (bfloat16_t)y;
}
