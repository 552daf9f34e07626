// experts_down_codes8_6230ee22
// small spec of a test
//
// Products of a tile of 8 choices of an expert by matrix instructions: out = x @ weight.T.
// A code's bits are an f16 number, code * 2^-24. x is one f16 number, scaled by a power of two for each 256 columns. 16 columns have
// one scale, which multiplies their sum. A simdgroup has 16 rows of the weight, 2 times, and copies one block of each at a time, 2 times ahead.
// Grid: (8, tiles) threadgroups of 2 simdgroups.
//   x          [tokens * 4, 256] bf16
//   weight     [4300800] u8
//     rows 0 to 20479: [20480, 256] q6_k at byte 0
//   order      [tokens * 4] i32: choices by expert
//   tiles      [tiles, 3] i32: expert, its first row in the order, and the row after its last
//   weights    [tokens * 4] f32
//   out        [tokens * 4, 512] bf16
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
struct Row_q6_k {
  const device uint8_t* blocks;
};
struct Raw_q6_k { uint low[2]; uint high; float scale; float scales[4]; };
inline Raw_q6_k raw_q6_k(Row_q6_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 210u;
  const uint half_block = piece % 16u / 8u;
  const uint at = piece % 8u * 4u;
  const device char* scales = (const device char*)(block + 192u + half_block * 8u + at / 16u);
  Raw_q6_k raw;
  raw.low[0] = load_u32_2(block + half_block * 64u + at);
  raw.low[1] = load_u32_2(block + half_block * 64u + at + 32u);
  raw.high = load_u32_2(block + 128u + half_block * 32u + at);
  raw.scale = load_half(block + 208);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.scales[i] = (float)scales[2u * i];
  }
  return raw;
}
inline void codes_q6_k(Raw_q6_k raw, uint run, thread float4* c) {
  const uint low = ((run & 1u ? raw.low[1] : raw.low[0]) >> (run & 2u) * 2u) & 0x0f0f0f0fu;
  c[0] = unsigned_bytes(low | ((raw.high >> (2u * run)) & 0x03030303u) << 4) - 32.0f;
}
inline float2 scale_q6_k(Raw_q6_k raw, uint run) {
  const float a = run & 1u ? raw.scales[1] : raw.scales[0];
  const float b = run & 1u ? raw.scales[3] : raw.scales[2];
  return float2(raw.scale * (run & 2u ? b : a), 0.0f);
}
// A run's elements.
inline void values_q6_k(Raw_q6_k raw, uint run, thread float4* c) {
  codes_q6_k(raw, run, c);
  const float2 scale = scale_q6_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    c[i] *= scale.x;
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
inline uint near_u32_2(const threadgroup uint8_t* p) {
  const threadgroup uint16_t* halves = (const threadgroup uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
// Copies a block of each of 16 rows, the first of which begins at `at`.
inline void ask(threadgroup uint4* to, const device uint8_t* weight, ulong at, uint lane) {
#pragma unroll
  for (uint j = 0; j < 7u; j++) {
    const uint i = lane + 32u * j;
    const uint r = i / 14u, v = i % 14u;
    const ulong begin = at + (ulong)(r * 210u);
    MLXR_COPY_AHEAD(to + r * 14u + v, (const device uint4*)(weight + (begin & ~15ul) + v * 16u));
  }
}
// ---- kernel
[[kernel]] void experts_down_codes8_6230ee22(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* order [[buffer(2)]],
  const device int32_t* tiles [[buffer(3)]],
  const device float* weights [[buffer(4)]],
  device bfloat16_t* out [[buffer(5)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint group = lane / 4, quad = lane % 4;
  // Written while this launch may have been there: no copy of a first-level cache.
  const device volatile int* of_tile = (const device volatile int*)tiles + threadgroup_position_in_grid.y * 3u;
  const uint first_row = (uint)of_tile[1];
  const uint end_row = (uint)of_tile[2];
  if (first_row >= end_row) {
    return;
  }
  const uint count = end_row - first_row;
  const uint expert_row = (uint)of_tile[0] * 512u;
  MLXR_THREADGROUP(uint4, ring, 896);
  MLXR_THREADGROUP(float4, scales_of, 128);
  // Rows of x: of each four columns 0, 2, 1 and 3, as codes are. Sums of 16 columns, of all rows side by side. And what scales back.
  MLXR_THREADGROUP(uint4, rows_of_x, 272);
  MLXR_THREADGROUP(uint4, sums_of_x, 32);
  MLXR_THREADGROUP(float2, backs, 4);
  threadgroup float* totals = (threadgroup float*)sums_of_x;
  threadgroup uint4* own = ring + simdgroup_index_in_threadgroup * 448u;
  threadgroup float4* of_rows = scales_of + simdgroup_index_in_threadgroup * 64u;
  const uint end = 512u;
  const uint first = threadgroup_position_in_grid.x * 64u + simdgroup_index_in_threadgroup * 16u;
  const uint steps = first < end ? min(2u, (end - first + 31u) / 32u) * 1u : 0u;
  // Rows of the second half follow those of the first, as a simdgroup counts them.
  const ulong at = (ulong)((long)(expert_row + first)) * 210u;
  uint asked = 0, asked_pass = 0, asked_unit = 0;
#pragma unroll 1
  while (asked < 2u) {
    if (asked < steps) {
      const ulong more = (ulong)(asked_pass * 6720u + asked_unit * 210u);
      ask(own + asked % 2u * 224u, weight, at + more, lane);
      asked_unit++;
      if (asked_unit == 1u) {
        asked_unit = 0;
        asked_pass++;
      }
    }
    asked++;
    MLXR_END_COPIES();
  }
  // Other rows have no sums.
  for (uint i = thread_index_in_threadgroup; i < 8u; i += 64u) {
    const uint row_of_tile = i % 8u;
    if (row_of_tile >= count) {
      ((threadgroup float*)backs)[i] = 0.0f;
#pragma unroll
      for (uint j = 0; j < 16u; j++) {
        totals[(i / 8u * 16u + j) * 8u + row_of_tile] = 0.0f;
      }
    }
  }
  MLXR_AWAIT_INPUTS()
  for (uint i = simdgroup_index_in_threadgroup; i < count * 1u; i += 2u) {
    const uint row_of_tile = i / 1u, x_unit = i % 1u;
    float4 v[2];
    unpack_bf16(*(const device uint4*)(x + (uint)order[first_row + row_of_tile] * 256u + (x_unit * 32u + lane) * 8u), v);
    const uint4 one = as_type<uint4>(v[0]) & 0x7fffffffu, other = as_type<uint4>(v[1]) & 0x7fffffffu;
    const uint most = simd_max(max(max(max(one.x, one.y), max(one.z, one.w)), max(max(other.x, other.y), max(other.z, other.w))));
    const uint exponent = clamp((int)(most >> 23), 15, 244);
    const float factor = as_type<float>((268u - exponent) << 23);
    v[0] *= factor;
    v[1] *= factor;
    float sum = sum4(v[0] + v[1]);
    sum += simd_shuffle_xor(sum, 1);
    if (lane % 2u == 0) {
      totals[(x_unit * 16u + lane / 2u) * 8u + row_of_tile] = -1.90734863e-06f * sum;
    }
    if (lane == 0) {
      ((threadgroup float*)backs)[x_unit * 8u + row_of_tile] = as_type<float>((exponent + 10u) << 23);
    }
    rows_of_x[row_of_tile * 34u + x_unit * 32u + lane] = uint4(f16_pair(v[0].x, v[0].z), f16_pair(v[0].y, v[0].w), f16_pair(v[1].x, v[1].z), f16_pair(v[1].y, v[1].w));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Rows past the end repeat the last one and are not stored.
  const threadgroup uint4* of_x[1];
  float4 sums[1][1];
#pragma unroll
  for (uint n = 0; n < 1u; n++) {
    const threadgroup uint4* of_row = rows_of_x + min(n * 8 + group, count - 1) * 34u;
    of_x[n] = (const threadgroup uint4*)((const threadgroup uint2*)of_row + quad);
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
    const threadgroup uint8_t* near = (const threadgroup uint8_t*)(own + step % 2u * 224u);
    const uint begin_of_unit = pass * 0u + unit * 2u;
    const threadgroup uint8_t* blocks[2];
#pragma unroll
    for (uint eighth = 0; eighth < 2u; eighth++) {
      const uint r = eighth * 8u + group;
      const uint begin = (uint)(at & 15ul) + r * 2u + begin_of_unit;
      blocks[eighth] = near + r * 224u + begin % 16u;
      const threadgroup char* s = (const threadgroup char*)(blocks[eighth] + 192u + quad * 4u);
      ((threadgroup float4*)of_rows)[r * 4u + quad] = (float)*(const threadgroup half*)(blocks[eighth] + 208u) * float4((float)s[0], (float)s[1], (float)s[2], (float)s[3]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float4 of_unit[1][1];
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
#pragma unroll
      for (uint m = 0; m < 1u; m++) {
        of_unit[m][n] = float4(0.0f);
      }
    }
#pragma unroll
    for (uint half_block = 0; half_block < 2; half_block++) {
      uint low[2][2][2], high[2][2];
#pragma unroll
      for (uint eighth = 0; eighth < 2u; eighth++) {
#pragma unroll
        for (uint h = 0; h < 2; h++) {
          const threadgroup uint8_t* p = blocks[eighth] + h * 16u + quad * 4u;
          low[eighth][0][h] = near_u32_2(p + half_block * 64u);
          low[eighth][1][h] = near_u32_2(p + half_block * 64u + 32u);
          high[eighth][h] = near_u32_2(p + 128u + half_block * 32u);
        }
      }
#pragma unroll
      for (uint run = 0; run < 4; run++) {
#pragma unroll
        for (uint h = 0; h < 2; h++) {
          uint4 a[1];
          float4 scale[1];
#pragma unroll
          for (uint m = 0; m < 1u; m++) {
            const uint one = 2 * m, other = 2 * m + 1;
            const uint even = ((low[one][run % 2][h] >> (run / 2 * 4)) & 0x0f0f0f0fu) | ((high[one][h] >> (2 * run)) & 0x03030303u) << 4;
            const uint odd = ((low[other][run % 2][h] >> (run / 2 * 4)) & 0x0f0f0f0fu) | ((high[other][h] >> (2 * run)) & 0x03030303u) << 4;
            a[m] = uint4(even & 0x00ff00ffu, odd & 0x00ff00ffu, (even >> 8) & 0x00ff00ffu, (odd >> 8) & 0x00ff00ffu);
            const float of_even = ((const threadgroup float*)of_rows)[(m * 16u + group) * 16u + half_block * 8u + run * 2u + h];
            const float of_odd = ((const threadgroup float*)of_rows)[(m * 16u + 8u + group) * 16u + half_block * 8u + run * 2u + h];
            scale[m] = float4(of_even, of_even, of_odd, of_odd);
          }
#pragma unroll
          for (uint n = 0; n < 1u; n++) {
            const uint2 b = ((const threadgroup uint2*)of_x[n])[x_unit * 64u + half_block * 32u + run * 8u + h * 4u];
            const float2 total = ((const threadgroup float2*)totals)[(x_unit * 16u + half_block * 8u + run * 2u + h) * 4u + n * 4u + quad];
#pragma unroll
            for (uint m = 0; m < 1u; m++) {
              of_unit[m][n] += scale[m] * mma_f16(a[m], b, float4(total.x, total.y, total.x, total.y), lane);
            }
          }
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
      const ulong more = (ulong)(asked_pass * 6720u + asked_unit * 210u);
      ask(own + asked % 2u * 224u, weight, at + more, lane);
      asked_unit++;
      if (asked_unit == 1u) {
        asked_unit = 0;
        asked_pass++;
      }
    }
    asked++;
    MLXR_END_COPIES();
    unit++;
    if (unit == 1u) {
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
          const uint o = first + pass * 32u + m * 16 + group;
          float y = j ? all.y : all.x;
          const uint choice = (uint)order[row];
          const ulong place = (ulong)choice * 512u + o;
          y *= weights[choice];
          out[place] = (bfloat16_t)y;
        }
        {
          const uint o = first + pass * 32u + m * 16 + group + 8;
          float y = j ? all.w : all.z;
          const uint choice = (uint)order[row];
          const ulong place = (ulong)choice * 512u + o;
          y *= weights[choice];
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
