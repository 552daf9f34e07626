// router_shared_e2a6053b
// small spec of a test
//
// Projection of several rows: out = rms_norm(x) @ weight.T.
// A threadgroup has 4 rows of x and 4 of the weight, of which each simdgroup takes some columns. The weight's are on
// their way before x is there.
// Grid: (10, ceil(tokens / 4)) threadgroups of 2 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [40, 256] f32
//   norm       [256] f32
//   out        [tokens, 40] f32
//   dims       [8] u32: tokens, seqs, rows, tiles
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
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
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }


// ---- kernel
[[kernel]] void router_shared_e2a6053b(
  const device bfloat16_t* x [[buffer(0)]],
  const device float* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, share = simdgroup_index_in_threadgroup;
  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 4u;
  const uint first = threadgroup_position_in_grid.x * 4u;
  const uint end = 40u;

  Row_f32 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_f32{weight + (ulong)row * 256u};
  }
  Raw_f32 raw[1][4];
  float4 norms[1][1];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + 32u * (share + step * 2u);
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[step][r] = raw_f32(w[r], piece);
    }
    load_f32_4(norm + piece * 4u, norms[step]);
  }
  MLXR_AWAIT_INPUTS()
  float sums[4][4];
  float squares[4];
#pragma unroll
  for (uint t = 0; t < 4u; t++) {
    squares[t] = 0.0f;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[t][r] = 0.0f;
    }
  }
  float4 v[4][1][1];
#pragma unroll
  for (uint t = 0; t < 4u; t++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = min(first_row + t, count - 1);
    const device bfloat16_t* input = x + (ulong)row * 256u;
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint piece = lane + 32u * (share + step * 2u);
      load_bf16_4(input + piece * 4u, v[t][step]);
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    float4 u[4][1];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      codes_f32(raw[step][r], 0, u[r]);
    }
#pragma unroll
    for (uint t = 0; t < 4u; t++) {
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        float4 of_x = v[t][step][j];
        squares[t] += sum4(of_x * of_x);
        of_x *= norms[step][j];
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
          sums[t][r] += sum4(u[r][j] * of_x);
        }
      }
    }
  }
  MLXR_THREADGROUP(float, shares, 40);
  threadgroup float* own = shares + share * 20u;
#pragma unroll
  for (uint t = 0; t < 4u; t++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const float total = simd_sum(sums[t][r]);
      if (lane == 0) {
        own[t * 4u + r] = total;
      }
    }
    const float total = simd_sum(squares[t]);
    if (lane == 0) {
      own[16u + t] = total;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint row = first_row + thread_index_in_threadgroup / 4u;
  const uint o = first + thread_index_in_threadgroup % 4u;
  if (thread_index_in_threadgroup < 16u && row < count && o < end) {
    float y = 0.0f;
    float all_squares = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      y += shares[s * 20u + thread_index_in_threadgroup];
      all_squares += shares[s * 20u + 16u + thread_index_in_threadgroup / 4u];
    }
    const float scale = metal::precise::rsqrt(all_squares * 0.00390625f + 9.99999975e-06f);
    const ulong place = (ulong)row * 40u + o;
    y *= scale;
    out[place] = (float)y;
  }
}
