// qkv_low_2398d735
// small spec of a test
//
// out = scale * x @ down[part, adapter].T of each token's adapter; nothing of tokens without one.
// Grid: (3, tokens) threadgroups of 8 simdgroups, each of which makes one number.
//   x               [tokens, 48] bf16
//   down            [3, 3, 8, 48] f16
//   adapter_ids     [tokens] i32; -1: none
//   adapter_scales  [tokens] f32
//   out             [tokens, 3, 8] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// ---- kernel
[[kernel]] void qkv_low_2398d735(
  const device bfloat16_t* x [[buffer(0)]],
  const device float16_t* down [[buffer(1)]],
  const device int32_t* adapter_ids [[buffer(2)]],
  const device float* adapter_scales [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const ulong token = threadgroup_position_in_grid.y;
  const int adapter = adapter_ids[token];
  if (adapter < 0) {
    return;
  }
  const uint number = threadgroup_position_in_grid.x * 8u + simdgroup_index_in_threadgroup;
  const uint part = number / 8u;
  const ulong row = ((ulong)part * 3u + (uint)adapter) * 8u + number % 8u;
  float sum = 0.0f;
  for (uint c = thread_index_in_simdgroup; c < 48u; c += 32) {
    sum += (float)x[token * 48u + c] * (float)down[row * 48u + c];
  }
  sum = simd_sum(sum);
  if (thread_index_in_simdgroup == 0) {
    out[token * 24u + number] = sum * adapter_scales[token];
  }
}
