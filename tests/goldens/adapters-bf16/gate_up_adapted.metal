// gate_up_adapted_59a8d6c8
// small spec of a test
//
// y = x + low @ lift[part, adapter] of each token's adapter, and the steps after the sums of a projection.
// Grid: (1, tokens) threadgroups of 256 threads, one for each output.
//   x            [tokens, 176] bf16
//   low          [tokens, 2, 8] f32; anything of tokens without an adapter
//   lift         by part: [3, 8, 88], [3, 8, 88] f16
//   adapter_ids  [tokens] i32; -1: none
//   out          [tokens, 88] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

// ---- kernel
[[kernel]] void gate_up_adapted_59a8d6c8(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* low [[buffer(1)]],
  const device float16_t* lift [[buffer(2)]],
  const device int32_t* adapter_ids [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint o = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup;
  const ulong row = threadgroup_position_in_grid.y;
  if (o >= 88u) {
    return;
  }
  const int adapter = adapter_ids[row];
  float y = (float)x[row * 176u + o];
  float up = (float)x[row * 176u + o + 88u];
  if (adapter >= 0) {
    float more = 0.0f;
    {
      const device float* by = low + row * 16u;
      const device float16_t* from = lift + (ulong)adapter * 704u + o;
      for (uint r = 0; r < 8u; r++) {
        y += by[r] * (float)from[r * 88u];
      }
    }
    {
      const device float* by = low + row * 16u + 8u;
      const device float16_t* from = lift + 2112u + (ulong)adapter * 704u + o;
      for (uint r = 0; r < 8u; r++) {
        more += by[r] * (float)from[r * 88u];
      }
    }
    up += more;
  }
  const ulong place = row * 88u + o;
  y = activate(y) * up;
  out[place] = (bfloat16_t)y;
}
