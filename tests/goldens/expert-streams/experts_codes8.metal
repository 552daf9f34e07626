// experts_codes8_73d0d032
// small spec of a test
//
// Products of a tile of 8 choices of an expert by matrix instructions: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A code's bits are an f16 number, code * 2^-24. x is one f16 number, scaled by a power of two for each 256 columns. 32 columns have
// one scale, which multiplies their sum. A simdgroup has 16 rows of the weight, 2 times, and copies one block of each at a time, 2 times ahead.
// Grid: (8, tiles) threadgroups of 2 simdgroups.
//   x          [tokens, 512] bf16
//   weight     [5898240] u8
//     rows 0 to 20479: [20480, 512] q4_k at byte 0
//   order      [tokens * 4] i32: choices by expert
//   tiles      [tiles, 3] i32: expert, its first row in the order, and the row after its last
//   out        [tokens * 4, 256] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_COPY_AHEAD  // a host may copy 16 bytes while other work goes on, and wait until at most `left` groups of copies are not done
#define MLXR_COPY_AHEAD(to, from) *(to) = *(from)
#define MLXR_END_COPIES()
#define MLXR_AWAIT_COPIES(left)
#endif
#ifndef MLXR_SUM  // a host's compiler may need telling not to fuse it with the product x
#define MLXR_SUM(x, y) ((x) + (y))
#endif
inline uint load_u32_1(const device uint8_t* p) {
  return (uint)p[0] | (uint)p[1] << 8 | (uint)p[2] << 16 | (uint)p[3] << 24;
}
inline uint load_u32_2(const device uint8_t* p) {
  const device uint16_t* halves = (const device uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint load_u32(const device uint8_t* p) { return *(const device uint*)p; }
inline uint2 load_u32x2(const device uint8_t* p) { return *(const device uint2*)p; }
inline uint4 load_u32x4(const device uint8_t* p) { return *(const device uint4*)p; }
inline float load_half(const device uint8_t* p) { return (float)*(const device half*)p; }
inline float half_of(uint bits) { return (float)as_type<half>((uint16_t)bits); }
inline float4 unsigned_bytes(uint u) { return float4(as_type<uchar4>(u)); }
inline float4 signed_bytes(uint u) { return float4(as_type<char4>(u)); }
// Bits 0 to 3 of x as bit 0 of each byte.
inline uint spread_bits(uint x) { return ((x & 15u) * 0x00204081u) & 0x01010101u; }
struct PairScales { float scale; float minimum; uint scales; uint minima; };
// Those of sub-blocks 2 * pair and 2 * pair + 1, in the two lowest bytes of `scales` and `minima`.
inline PairScales pair_scales(uint4 head, uint pair) {
  const uint shift = 16u * (pair & 1u);
  const uint scales = pair < 2u ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u);
  const uint minima = pair < 2u ? head.z & 0x3f3f3f3fu : ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u);
  return PairScales{half_of(head.x & 0xffffu), half_of(head.x >> 16), scales >> shift, minima >> shift};
}
inline float2 scale_of(PairScales s, uint run) {
  const float scale = (float)((s.scales >> (8u * run)) & 255u);
  const float minimum = (float)((s.minima >> (8u * run)) & 255u);
  return float2(s.scale * scale, -(s.minimum * minimum));
}
struct Row_q4_k {
  const device uint8_t* blocks;
};
struct Raw_q4_k { uint2 q; PairScales scales; };
inline Raw_q4_k raw_q4_k(Row_q4_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 144u;
  return Raw_q4_k{load_u32x2(block + 16u + piece % 16u * 8u), pair_scales(load_u32x4(block), piece % 16u / 4u)};
}
inline void codes_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    c[i] = unsigned_bytes((raw.q[i] >> (4u * run)) & 0x0f0f0f0fu);
  }
}
inline float2 scale_q4_k(Raw_q4_k raw, uint run) { return scale_of(raw.scales, run); }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
  codes_q4_k(raw, run, c);
  const float2 scale = scale_q4_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

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
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

inline uint near_u32_2(const threadgroup uint8_t* p) {
  const threadgroup uint16_t* halves = (const threadgroup uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
// Copies a block of each of 16 rows, the first of which begins at `at`, of ups at `ups`.
inline void ask(threadgroup uint4* to, const device uint8_t* weight, ulong at, ulong ups, uint lane) {
#pragma unroll
  for (uint j = 0; j < 5u; j++) {
    const uint i = lane + 32u * j;
    if (i >= 144u) {
      break;
    }
    const uint r = i / 9u, v = i % 9u;
    const ulong begin = (r < 8u ? at : ups) + (ulong)(r * 288u);
    MLXR_COPY_AHEAD(to + r * 10u + v, (const device uint4*)(weight + begin + v * 16u));
  }
}
// ---- kernel
[[kernel]] void experts_codes8_73d0d032(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* order [[buffer(2)]],
  const device int32_t* tiles [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint group = lane / 4, quad = lane % 4;
  const device int* of_tile = tiles + threadgroup_position_in_grid.y * 3u;
  const uint first_row = (uint)of_tile[1];
  const uint end_row = (uint)of_tile[2];
  if (first_row >= end_row) {
    return;
  }
  const uint count = end_row - first_row;
  const uint expert_row = (uint)of_tile[0] * 256u;
  MLXR_THREADGROUP(uint4, ring, 640);
  MLXR_THREADGROUP(float2, scales_of, 128);
  // Rows of x: of each four columns 0, 2, 1 and 3, as codes are. Sums of 32 columns: of two pairs of f16 numbers, whose sums they are. And what scales back.
  MLXR_THREADGROUP(uint4, rows_of_x, 544);
  MLXR_THREADGROUP(uint4, sums_of_x, 32);
  MLXR_THREADGROUP(float2, backs, 8);
  threadgroup float* totals = (threadgroup float*)sums_of_x;
  threadgroup uint4* own = ring + simdgroup_index_in_threadgroup * 320u;
  threadgroup float2* of_rows = scales_of + simdgroup_index_in_threadgroup * 64u;
  const uint end = 256u;
  const uint first = threadgroup_position_in_grid.x * 32u + simdgroup_index_in_threadgroup * 8u;
  const uint steps = first < end ? min(2u, (end - first + 15u) / 16u) * 2u : 0u;
  // Rows of the second half follow those of the first, as a simdgroup counts them.
  const ulong at = (ulong)((long)(expert_row + first)) * 288u;
  const ulong ups = (ulong)((long)(expert_row + first) + 10232) * 288u;
  uint asked = 0, asked_pass = 0, asked_unit = 0;
#pragma unroll 1
  while (asked < 2u) {
    if (asked < steps) {
      const ulong more = (ulong)(asked_pass * 4608u + asked_unit * 144u);
      ask(own + asked % 2u * 160u, weight, at + more, ups + more, lane);
      asked_unit++;
      if (asked_unit == 2u) {
        asked_unit = 0;
        asked_pass++;
      }
    }
    asked++;
    MLXR_END_COPIES();
  }
  // Other rows have no sums.
  for (uint i = thread_index_in_threadgroup; i < 16u; i += 64u) {
    const uint row_of_tile = i % 8u;
    if (row_of_tile >= count) {
      ((threadgroup float*)backs)[i] = 0.0f;
#pragma unroll
      for (uint j = 0; j < 4u; j++) {
        ((threadgroup uint2*)totals)[i * 4u + j] = uint2(0u);
      }
    }
  }
  for (uint i = simdgroup_index_in_threadgroup; i < count * 2u; i += 2u) {
    const uint row_of_tile = i / 2u, x_unit = i % 2u;
    float4 v[2];
    unpack_bf16(*(const device uint4*)(x + (uint)order[first_row + row_of_tile] / 4u * 512u + (x_unit * 32u + lane) * 8u), v);
    const uint4 one = as_type<uint4>(v[0]) & 0x7fffffffu, other = as_type<uint4>(v[1]) & 0x7fffffffu;
    const uint most = simd_max(max(max(max(one.x, one.y), max(one.z, one.w)), max(max(other.x, other.y), max(other.z, other.w))));
    const uint exponent = clamp((int)(most >> 23), 15, 244);
    const float factor = as_type<float>((268u - exponent) << 23);
    v[0] *= factor;
    v[1] *= factor;
    float sum = sum4(v[0] + v[1]);
    sum += simd_shuffle_xor(sum, 1);
    sum = 0.015625f * (sum + simd_shuffle_xor(sum, 2));
    const float second = simd_shuffle_xor(sum, 4);
    if (lane % 8u == 0) {
      const uint upper = f16_pair(sum, second);
      const float2 rest = float2(sum, second) - floats_of(upper);
      ((threadgroup uint2*)totals)[(x_unit * 8u + row_of_tile) * 4u + lane / 8u] = uint2(upper, f16_pair(rest.x, rest.y));
    }
    // Codes of the upper halves of bytes are 16 times as large.
    const float of_half = lane / 4u % 2u == 0 ? 1.0f : 0.0625f;
    v[0] *= of_half;
    v[1] *= of_half;
    if (lane == 0) {
      ((threadgroup float*)backs)[x_unit * 8u + row_of_tile] = as_type<float>((exponent + 10u) << 23);
    }
    rows_of_x[row_of_tile * 68u + x_unit * 32u + lane] = uint4(f16_pair(v[0].x, v[0].z), f16_pair(v[0].y, v[0].w), f16_pair(v[1].x, v[1].z), f16_pair(v[1].y, v[1].w));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Rows past the end repeat the last one and are not stored.
  const threadgroup uint4* of_x[1];
  float4 sums[1][1];
#pragma unroll
  for (uint n = 0; n < 1u; n++) {
    const threadgroup uint4* of_row = rows_of_x + min(n * 8 + group, count - 1) * 68u;
    of_x[n] = of_row + quad;
#pragma unroll
    for (uint m = 0; m < 1u; m++) {
      sums[m][n] = float4(0.0f);
    }
  }
  uint pass = 0, unit = 0;
#pragma unroll 1
  for (uint step = 0; step < steps; step++) {
    const uint x_unit = unit;
    MLXR_AWAIT_COPIES(1);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup uint8_t* near = (const threadgroup uint8_t*)(own + step % 2u * 160u);
    uint minima[2];
    float minimum[2];
#pragma unroll
    for (uint eighth = 0; eighth < 2u; eighth++) {
      const uint r = eighth * 8u + group;
      const PairScales two = pair_scales(*(const threadgroup uint4*)(near + r * 160u), quad);
      of_rows[r * 4u + quad] = float2(two.scale * (float)(two.scales & 255u), two.scale * (float)(two.scales >> 8 & 255u));
      minima[eighth] = (two.minima & 0xffu) | (two.minima & 0xff00u) << 8;
      minimum[eighth] = -64.0f * two.minimum;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float4 of_unit[1][1];
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
      const uint2 b = ((const threadgroup uint2*)totals)[(x_unit * 8u + n * 8u + group) * 4u + quad];
#pragma unroll
      for (uint m = 0; m < 1u; m++) {
        const uint even = m, odd = m + 1;
        of_unit[m][n] = mma_f16(uint4(minima[even], minima[odd], minima[even], minima[odd]), b, lane) * float4(minimum[even], minimum[even], minimum[odd], minimum[odd]);
      }
    }
#pragma unroll
    for (uint p = 0; p < 4; p++) {
      uint4 a[1][4];
      float2 scale_even[1], scale_odd[1];
#pragma unroll
      for (uint m = 0; m < 1u; m++) {
        scale_even[m] = of_rows[(m * 8u + group) * 4u + p];
        scale_odd[m] = of_rows[(m * 8u + 8u + group) * 4u + p];
        const uint2 w = *(const threadgroup uint2*)(near + (m * 8u + group) * 160u + 16u + p * 32u + quad * 8u);
        const uint2 v = *(const threadgroup uint2*)(near + (m * 8u + 8u + group) * 160u + 16u + p * 32u + quad * 8u);
        const uint2 w8 = w >> 8, v8 = v >> 8;
        a[m][0] = uint4(w.x & 0x000f000fu, v.x & 0x000f000fu, w8.x & 0x000f000fu, v8.x & 0x000f000fu);
        a[m][1] = uint4(w.y & 0x000f000fu, v.y & 0x000f000fu, w8.y & 0x000f000fu, v8.y & 0x000f000fu);
        a[m][2] = uint4(w.x & 0x00f000f0u, v.x & 0x00f000f0u, w8.x & 0x00f000f0u, v8.x & 0x00f000f0u);
        a[m][3] = uint4(w.y & 0x00f000f0u, v.y & 0x00f000f0u, w8.y & 0x00f000f0u, v8.y & 0x00f000f0u);
      }
#pragma unroll
      for (uint n = 0; n < 1u; n++) {
        const uint4 low = of_x[n][x_unit * 32u + p * 8u], high = of_x[n][x_unit * 32u + p * 8u + 4u];
#pragma unroll
        for (uint m = 0; m < 1u; m++) {
          float4 c = mma_f16(a[m][0], low.xy, lane), d = mma_f16(a[m][2], high.xy, lane);
          c = mma_f16(a[m][1], low.zw, c, lane);
          d = mma_f16(a[m][3], high.zw, d, lane);
          const float2 e = scale_even[m], o = scale_odd[m];
          of_unit[m][n] += c * float4(e.x, e.x, o.x, o.x);
          of_unit[m][n] += d * float4(e.y, e.y, o.y, o.y);
        }
      }
    }
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
      const float2 back = backs[x_unit * 4u + n * 4u + quad];
#pragma unroll
      for (uint m = 0; m < 1u; m++) {
        sums[m][n] += of_unit[m][n] * float4(back.x, back.y, back.x, back.y);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (asked < steps) {
      const ulong more = (ulong)(asked_pass * 4608u + asked_unit * 144u);
      ask(own + asked % 2u * 160u, weight, at + more, ups + more, lane);
      asked_unit++;
      if (asked_unit == 2u) {
        asked_unit = 0;
        asked_pass++;
      }
    }
    asked++;
    MLXR_END_COPIES();
    unit++;
    if (unit == 2u) {
#pragma unroll
      for (uint m = 0; m < 1u; m++) {
#pragma unroll
        for (uint n = 0; n < 1u; n++) {
          const float4 all = sums[m][n];
          sums[m][n] = float4(0.0f);
#pragma unroll
          for (uint j = 0; j < 2; j++) {
            const uint row = first_row + n * 8 + quad * 2 + j;
            if (n * 8 + quad * 2 + j >= count) {
              break;
            }
        {
          const uint o = first + pass * 16u + m * 8 + group;
          float y = j ? all.y : all.x;
          float up = j ? all.w : all.z;
          const uint choice = (uint)order[row];
          const ulong place = (ulong)choice * 256u + o;
          y = activate(y) * up;
          out[place] = (bfloat16_t)y;
        }
          }
        }
      }
      unit = 0;
      pass++;
    }
  }
}
