// hidden_write_49973e03
// small spec of a test
//
// Each row to its token's slot, for the head that guesses.
// Grid: one threadgroup of 1 simdgroup a token.
//   x          [tokens, 48] bf16
//   slots      [tokens] i32; -1 for padding tokens
//   hidden_arena  [slots, 48] bf16, written
//   token, token_out  [8] u32
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

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void hidden_write_49973e03(
  const device bfloat16_t* x [[buffer(0)]],
  const device int32_t* slots [[buffer(1)]],
  const device bfloat16_t* hidden_arena [[buffer(2)]],
  const device uint32_t* token [[buffer(3)]],
  device uint32_t* token_out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint own = thread_index_in_threadgroup * 4u;
  float4 v[1];
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
  const uint t = threadgroup_position_in_grid.x;
  if (slots[t] < 0) {
    return;
  }
  const ulong slot = (ulong)(uint)slots[t];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    v[i] = float4(0.0f);
    if (at < 48u) {
      load_bf16_4(x + (ulong)t * 48u + at, v + i);
    }
  }
  device bfloat16_t* to = const_cast<device bfloat16_t*>(hidden_arena) + slot * 48u;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    if (at >= 48u) {
      continue;
    }
    float4 y = v[i];

#pragma unroll
    for (uint j = 0; j < 4; j++) {
      to[at + j] = (bfloat16_t)y[j];
    }
  }
}
