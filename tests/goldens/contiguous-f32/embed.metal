// embed_aca681be
// small spec of a test
//
// Embedding gather: out[t] = table[token_ids[t]].
// Grid: one threadgroup of 32 threads a token; a thread copies 8 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 48] f32
//   out        [tokens, 48] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_8(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void embed_aca681be(
  const device int32_t* token_ids [[buffer(0)]],
  const device float* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const device float* row = table + (ulong)token_ids[token] * 48u;
  device float* target = out + (ulong)token * 48u;
  for (uint i = thread_index_in_threadgroup * 8; i < 48u; i += 256u) {
    float4 v[2];
    load_f32_8(row + i, v);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      target[i + j] = (float)v[0][j];
      target[i + 4 + j] = (float)v[1][j];
    }
  }
}
