// experts_numbers_7bcd932f
// small spec of a test
//
// Rows of x as f16 numbers, in the order in which products of experts' choices multiply them: scaled by a power of two, which loses
// nothing that matters of a 16-bit number. A simdgroup takes one of a token's 1 row.
// Grid: (tokens) threadgroups of 1 simdgroup.
//   x          [tokens, 512] bf16
//   out        [tokens, 512] f16
//   backs      [tokens] f32: what scales products back
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
// The f16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return float2((float)as_type<half>((uint16_t)pair), (float)as_type<half>((uint16_t)(pair >> 16)));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_f16(uint4 a, uint2 b, float4 c, uint lane) {
  for (uint t = 0; t < 4; t++) {
    const uint row = lane / 4 * 4 + t, column = lane % 4 * 8 + t;
    const uint4 w = uint4(simd_shuffle(a.x, row), simd_shuffle(a.y, row), simd_shuffle(a.z, row), simd_shuffle(a.w, row));
    const uint2 even = uint2(simd_shuffle(b.x, column), simd_shuffle(b.y, column));
    const uint2 odd = uint2(simd_shuffle(b.x, column + 4), simd_shuffle(b.y, column + 4));
    c.x = pair_product(w.z, even.y, pair_product(w.x, even.x, c.x));
    c.y = pair_product(w.z, odd.y, pair_product(w.x, odd.x, c.y));
    c.z = pair_product(w.w, even.y, pair_product(w.y, even.x, c.z));
    c.w = pair_product(w.w, odd.y, pair_product(w.y, odd.x, c.w));
  }
  return c;
}
#endif
#ifndef MLXR_MMA
inline float4 mma_f16(uint4 a, uint2 b, uint lane) { return mma_f16(a, b, float4(0.0f), lane); }
#endif
// Two floats rounded to f16, the first in the lower half.
inline uint f16_pair(float x, float y) {
  return (uint)as_type<uint16_t>((half)x) | (uint)as_type<uint16_t>((half)y) << 16;
}
// The bits of a small number are those of an f16 number, 2^-24 of it. Nibbles i and i + 4, odd ones 16 times as large.
inline void nibble_pairs(uint u, thread uint* p) {
  p[0] = u & 0x000f000fu;
  p[1] = u & 0x00f000f0u;
  p[2] = (u >> 8) & 0x000f000fu;
  p[3] = (u >> 8) & 0x00f000f0u;
}
// Bytes 0 and 2, then 1 and 3, of which `mask` tells what to take.
inline void byte_pairs(uint u, uint mask, thread uint* p) {
  p[0] = u & mask;
  p[1] = (u >> 8) & mask;
}
#ifndef MLXR_F16_PAIRS  // a host may compute both numbers at once
inline uint f16_fma(uint a, uint b, uint c) {
  const float2 x = floats_of(a), y = floats_of(b), z = floats_of(c);
  return f16_pair(x.x * y.x + z.x, x.y * y.y + z.y);
}
inline uint f16_times(uint a, uint b) {
  const float2 x = floats_of(a), y = floats_of(b);
  return f16_pair(x.x * y.x, x.y * y.y);
}
// A byte of a word twice, less what `less` has more than 1024.
inline uint f16_of_byte(uint word, uint byte, uint less) {
  const float number = (float)((word >> (8u * byte)) & 255u) + 1024.0f - floats_of(less).x;
  return f16_pair(number, number);
}
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
struct NearRow {
  const threadgroup uint4* unit;
  uint row, begin;
};
inline float scales_q4_k(NearRow row, threadgroup uint4* table, uint part) {
  const uint4 head = row.unit[128u + row.row];
  const float2 factors = floats_of(head.x);
  // Divided by the block's scale, which leaves whole numbers of codes times scales.
  const float base = metal::abs(factors.y) > 4096.0f * metal::abs(factors.x) ? factors.y : factors.x;
  const float2 d = base == 0.0f ? factors : factors * metal::fast::divide(1.0f, base);
  const uint even = f16_pair(d.x * 512.0f, d.x * 512.0f), odd = f16_pair(d.x * 32.0f, d.x * 32.0f);
  const uint minimum = f16_pair(d.y * -0.125f, d.y * -0.125f);
  {
    const uint i = part;
    const uint scales = i == 0 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u);
    const uint minima = i == 0 ? head.z & 0x3f3f3f3fu : ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u);
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint first = 2u * j, second = 2u * j + 1u;
      table[2 * i + j] = uint4(
          f16_times(f16_of_byte(scales, first, 0x64006400u), even), f16_times(f16_of_byte(scales, second, 0x64006400u), odd),
          f16_times(f16_times(f16_of_byte(minima, first, 0x64006400u), minimum), 0x0c000c00u),  // 2^-12, after what is rounded
          f16_times(f16_times(f16_of_byte(minima, second, 0x64006400u), minimum), 0x0c000c00u));
    }
  }
  return base * 32768.0f;
}
inline uint near_place_q4_k(uint row, uint vector) { return vector == 0u ? 128u + row : row * 8u + ((vector - 1u) ^ row % 2u * 4u); }
inline void place_of_q4_k(uint column, thread uint& step, thread uint& quad, thread uint& half_step) {
  step = column / 128u * 4u + column % 16u / 4u;
  quad = column / 64u % 2u * 2u + column % 32u / 16u;
  half_step = column / 32u % 2u;
}
struct Part_q4_k { uint4 q; uint4 scales; };
inline Part_q4_k part_q4_k(NearRow row, const threadgroup uint4* table, uint half_block, uint quad) {
  return Part_q4_k{row.unit[row.row * 8u + ((half_block * 4u + quad) ^ row.row % 2u * 4u)], table[half_block * 2u + quad / 2u]};
}
inline uint2 numbers_q4_k(Part_q4_k part, uint step, uint half_step) {
  const uint q = part.q[step], mask = half_step == 0 ? 0x000f000fu : 0x00f000f0u;
  const uint scale = half_step == 0 ? part.scales.x : part.scales.y, minimum = half_step == 0 ? part.scales.z : part.scales.w;
  return uint2(f16_fma(q & mask, scale, minimum), f16_fma((q >> 8) & mask, scale, minimum));
}
// ---- kernel
[[kernel]] void experts_numbers_7bcd932f(
  const device bfloat16_t* x [[buffer(0)]],
  device float16_t* out [[buffer(1)]],
  device float* backs [[buffer(2)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  for (uint of_token = simdgroup_index_in_threadgroup; of_token < 1u; of_token += 1u) {
    const uint row = threadgroup_position_in_grid.x * 1u + of_token;
    const device uint4* const from = (const device uint4*)(x + (ulong)row * 512u) + lane;
    device uint* const to = (device uint*)(out + (ulong)row * 512u);
    uint4 numbers[2];
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      numbers[u] = from[u * 32u];
    }
    // The largest number is scaled to between 2^14 and 2^15.
    uint most = 0;
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      float4 v[2];
      unpack_bf16(numbers[u], v);
      const uint4 one = as_type<uint4>(v[0]) & 0x7fffffffu, other = as_type<uint4>(v[1]) & 0x7fffffffu;
      most = max(most, max(max(max(one.x, one.y), max(one.z, one.w)), max(max(other.x, other.y), max(other.z, other.w))));
    }
    const uint exponent = clamp((int)(simd_max(most) >> 23), 15, 244);
    const float factor = as_type<float>((268u - exponent) << 23);
    if (lane == 0) {
      backs[row] = as_type<float>((exponent - 14u) << 23);
    }
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      float4 v[2];
      unpack_bf16(numbers[u], v);
#pragma unroll
      for (uint j = 0; j < 2; j++) {
        uint step, quad, half_step;
        place_of_q4_k(lane * 8u + j * 4u, step, quad, half_step);
        const uint place = u * 128u + (step * 2u + half_step) * 8u + quad;
        const float4 four = v[j] * factor;
        to[place] = f16_pair(four.x, four.z);
        to[place + 4u] = f16_pair(four.y, four.w);
      }
    }
  }
}
