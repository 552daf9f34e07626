// guess_input_9c02de49
// small spec of a test
//
// [norm(x) | norm(kept row)]: what the head that guesses projects.
// Grid: (tokens, 2) threadgroups of 1 simdgroup: of x, and of the kept row.
//   x          [tokens, 48] bf16
//   weight  [48] f32
//   hidden_weight  [48] f32
//   slots      [tokens] i32; -1 for padding tokens
//   hidden_arena  [slots, 48] bf16
//   token, token_out  [8] u32
//   out        [tokens, 96] bf16
//   row        [tokens, 48] bf16: the kept row, normalised
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

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
// ---- kernel
[[kernel]] void guess_input_9c02de49(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* hidden_weight [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device bfloat16_t* hidden_arena [[buffer(4)]],
  const device uint32_t* token [[buffer(5)]],
  device bfloat16_t* out [[buffer(6)]],
  device bfloat16_t* row [[buffer(7)]],
  device uint32_t* token_out [[buffer(8)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint own = thread_index_in_threadgroup * 4u;
  float4 v[1];
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
  const uint t = threadgroup_position_in_grid.x;
  const bool is_kept = threadgroup_position_in_grid.y == 1;
  if (is_kept) {
    const device bfloat16_t* kept = hidden_arena + (ulong)(uint)max(slots[t], 0) * 48u;
  #pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint at = own + i * 128u;
      v[i] = float4(0.0f);
      if (at < 48u) {
        load_bf16_4(kept + at, v + i);
      }
    }
  } else {
  #pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint at = own + i * 128u;
      v[i] = float4(0.0f);
      if (at < 48u) {
        load_bf16_4(x + (ulong)t * 48u + at, v + i);
      }
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    squares += sum4(v[i] * v[i]);
  }
  squares = simd_sum(squares);
  const float factor = metal::precise::rsqrt(squares * 0.020833334f + 9.99999975e-06f);
  device bfloat16_t* to = out + (ulong)t * 96u + (is_kept != true ? 0u : 48u);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    const uint at = own + i * 128u;
    if (at >= 48u) {
      continue;
    }
    float4 y = v[i] * factor;
    if (is_kept) {
      float4 kept_w;
      load_f32_4(hidden_weight + at, &kept_w);
      y *= kept_w;

      for (uint j = 0; j < 4; j++) {
        row[(ulong)t * 48u + at + j] = (bfloat16_t)y[j];
      }
    } else {
      float4 w;
      load_f32_4(weight + at, &w);
      y *= w;

    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      to[at + j] = (bfloat16_t)y[j];
    }
  }
}
