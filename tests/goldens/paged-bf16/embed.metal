// embed_a98c853d
// small spec of a test
//
// Embedding gather: out[t] = table[token_ids[t]].
// Grid: one threadgroup of 32 threads a token; a thread copies 8 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 48] bf16
//   out        [tokens, 48] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void embed_a98c853d(
  const device int32_t* token_ids [[buffer(0)]],
  const device bfloat16_t* table [[buffer(1)]],
  device bfloat16_t* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const device bfloat16_t* row = table + (ulong)token_ids[token] * 48u;
  device bfloat16_t* target = out + (ulong)token * 48u;
  for (uint i = thread_index_in_threadgroup * 8; i < 48u; i += 256u) {
    float4 v[2];
    load_bf16_8(row + i, v);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      target[i + j] = (bfloat16_t)v[0][j];
      target[i + 4 + j] = (bfloat16_t)v[1][j];
    }
  }
}
