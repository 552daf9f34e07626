// latent_reduce_a739d643
// small spec of a test
//
// Split-KV reduction of latent attention: merges the partitions of each query head by their maxima, and multiplies the
// result by the head's v_b. 
// Grid: (6 query heads, seqs) threadgroups of 16 simdgroups.
//   partial    [seqs, 6, 3, 72] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused
//   v_b        [192, 72] bf16
//   positions  [seqs] i32, of the new tokens
//   out        [seqs, 6, 32] bf16
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
inline void load_row_4(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
}
inline void load_row_8(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
  v[1] = *(const threadgroup float4*)(p + 4);
}
inline void load_row_16(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
  v[1] = *(const threadgroup float4*)(p + 4);
  v[2] = *(const threadgroup float4*)(p + 8);
  v[3] = *(const threadgroup float4*)(p + 12);
}

struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }

#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void latent_reduce_a739d643(
  const device float* partial [[buffer(0)]],
  const device float* stats [[buffer(1)]],
  const device bfloat16_t* v_b [[buffer(2)]],
  const device int32_t* positions [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint head = threadgroup_position_in_grid.x;
  const uint sequence = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[sequence];
  const uint start = 0u;
  const uint length = (position - start) / 48u * 16u + 16u;
  const uint count = (position - start) / length + 1;
  const ulong place = ((ulong)sequence * 6u + head) * 3u;
  const device float* s = stats + place * 4;
  float largest = LOWEST;
  for (uint p = lane; p < count; p += 32) {
    largest = max(largest, s[4 * p]);
  }
  largest = simd_max(largest);
  float total = 0.0f;
  for (uint p = lane; p < count; p += 32) {
    total += s[4 * p + 1] * exp2(s[4 * p] - largest);
  }
  const float inverse = 1.0f / simd_sum(total);
  MLXR_THREADGROUP(float, factors, 3);
  for (uint p = thread_index_in_threadgroup; p < count; p += 512u) {
    factors[p] = exp2(s[4 * p] - largest) * inverse;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  MLXR_THREADGROUP(float4, attended, 18);
  for (uint i = thread_index_in_threadgroup; i < 72u; i += 512u) {
    float v = 0.0f;
#pragma unroll 8
    for (uint p = 0; p < count; p++) {
      v += partial[(place + p) * 72u + i] * factors[p];
    }
    ((threadgroup float*)attended)[i] = v;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup float* input = (const threadgroup float*)attended;
    device bfloat16_t* target = out + ((ulong)sequence * 6u + head) * 32u;
    for (uint base = simdgroup_index_in_threadgroup * 16u; base < 32u; base += 256u) {
      const uint end = 32u;
      const uint head_row = head * 32u;
      // 16 lanes to a row; those past the last row repeat others.
      const uint own = base + thread_index_in_simdgroup / 16u * 8u;
      const uint first = own < end ? own : base;
      const uint lane = thread_index_in_simdgroup % 16u;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{v_b + (ulong)row * 72u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 8u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 9u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      load_row_8(input + column + run * 8u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[2];
        codes_bf16(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    float total = sum4(sums[r]);
#pragma unroll
    for (ushort offset = 8; offset > 0; offset /= 2) {
      total += simd_shuffle_xor(total, offset);
    }
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end && own < end) {
        target[o] = (bfloat16_t)y;
      }
    }
}
