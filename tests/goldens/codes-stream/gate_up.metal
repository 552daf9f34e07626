// gate_up_5962f323
// small spec of a test
//
// Projection of one row by matrix instructions: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A code's bits are an f16 number, code * 2^-24. x is scaled by a power of two for each 512 columns, and is the sum of two f16 numbers.
// A step multiplies 16 rows of the weight by four pairs of pieces: lane 4 g + t holds pair t of rows g and g + 8. x has two
// columns for each pair, upper and lower parts, and is zero elsewhere, so that a lane gets the products of its own pairs and
// applies its scales as in other kernels.
// 1 simdgroup has the columns of 8 outputs, 4 times. Each copies what it multiplies to threadgroup
// memory, 512 columns at a time and 2 times ahead.
// The norm costs no pass of its own: x^2 is added up where x is read, and 1/rms scales the finished dot products.
// Grid: 8 threadgroups of 2 simdgroups.
//   x          [tokens, 512] bf16
//   weight     [294912] u8
//     rows 0 to 1023: [1024, 512] q4_k at byte 0
//   norm       [512] f32
//   out        [tokens, 512] bf16
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
#ifndef MLXR_AHEAD  // of so many pieces of the weight, those to be asked for before x: x waits for them
#define MLXR_AHEAD(stages) 0
#endif
#ifndef MLXR_WANT_RUN  // a host may ask for vectors of 16 bytes to come to a cache
#define MLXR_WANT_RUN(p, bytes)
#endif
#ifndef MLXR_COPY_AHEAD  // a host may copy 16 bytes while other work goes on, and wait until at most `left` groups of copies are not done
#define MLXR_COPY_AHEAD(to, from) *(to) = *(from)
#define MLXR_END_COPIES()
#define MLXR_AWAIT_COPIES(left)
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline void load_f32_8(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
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

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }


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
inline uint near_u32_2(const threadgroup uint8_t* p) {
  const threadgroup uint16_t* halves = (const threadgroup uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint4 near_u32x4(const threadgroup uint8_t* p) { return *(const threadgroup uint4*)p; }
inline float near_half(const threadgroup uint8_t* p) { return (float)*(const threadgroup half*)p; }
struct Wide_q4_k { uint4 q[4]; uint4 head; bool second; };
inline Wide_q4_k wide_q4_k(Row_q4_k row, uint half_block) {
  const device uint8_t* block = row.blocks + half_block / 2u * 144u;
  Wide_q4_k raw;
  raw.head = load_u32x4(block);
  raw.second = half_block % 2u;
  return raw;
}
inline void load_q4_k(thread Wide_q4_k& raw, Row_q4_k row, uint half_block, uint s) {
  const device uint8_t* q = row.blocks + half_block / 2u * 144u + 16u + half_block % 2u * 64u;
  raw.q[2 * s] = load_u32x4(q + s * 32u);
  raw.q[2 * s + 1] = load_u32x4(q + s * 32u + 16u);
}
inline void pairs_q4_k(Wide_q4_k raw, uint half_pair, uint run, thread uint* p) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    byte_pairs(raw.q[half_pair / 2][half_pair % 2 * 2 + i], 0x000f000fu << (4u * run), p + 2 * i);
  }
}
inline float2 wide_scale_q4_k(Wide_q4_k raw, uint run) {
  const uint own = raw.second ? 0x30303030u : 0x3f3f3f3fu, low = raw.second ? 0x0f0f0f0fu : 0u, shift = raw.second ? 2u : 0u;
  const uint scales = ((raw.head.y >> shift) & own) | (raw.head.w & low);
  const uint minima = ((raw.head.z >> shift) & own) | ((raw.head.w >> 4) & low);
  const uint at = 8u * (run & 1u);
  return float2(floats_of((scales >> at) & 0x00ff00ffu)[run / 2], floats_of((minima >> at) & 0x00ff00ffu)[run / 2]);
}
inline float2 wide_factor_q4_k(Wide_q4_k raw) {
  const float2 factors = floats_of(raw.head.x) * 16777216.0f;
  return float2(factors.x, -factors.y);
}
struct Near_q4_k {
  const threadgroup uint8_t* blocks;
};
inline Wide_q4_k wide_q4_k(Near_q4_k row, uint half_block) {
  const threadgroup uint8_t* block = row.blocks + half_block / 2u * 144u;
  Wide_q4_k raw;
  raw.head = near_u32x4(block);
  raw.second = half_block % 2u;
  return raw;
}
inline void load_q4_k(thread Wide_q4_k& raw, Near_q4_k row, uint half_block, uint s) {
  const threadgroup uint8_t* q = row.blocks + half_block / 2u * 144u + 16u + half_block % 2u * 64u;
  raw.q[2 * s] = near_u32x4(q + s * 32u);
  raw.q[2 * s + 1] = near_u32x4(q + s * 32u + 16u);
}
inline uint stage_q4_k(
    const thread uint4* of_x,
    const thread float4* of_norm,
    thread float4* squares,
    uint lane, threadgroup uint4* stage, threadgroup float* total) {
  float4 of_piece[4];
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    of_piece[j] = widen_bf16(j % 2 == 0 ? of_x[j / 2].xy : of_x[j / 2].zw);
    *squares += of_piece[j] * of_piece[j];
    of_piece[j] *= of_norm[j];
  }
  // The largest of the 512 numbers is scaled to between 2^14 and 2^15.
  uint most = 0;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    const uint4 bits = as_type<uint4>(of_piece[j]) & 0x7fffffffu;
    most = max(most, max(max(bits.x, bits.y), max(bits.z, bits.w)));
  }
  const uint exponent = clamp((int)(simd_max(most) >> 23), 15, 244);
  const float factor = as_type<float>((268u - exponent) << 23);
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    of_piece[j] *= factor;
  }
  {
    const float sum = sum4(of_piece[0]) + sum4(of_piece[1]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    const float of_pairs = of_pair + simd_shuffle_xor(of_pair, 2);
    if (lane % 4 == 0) {
      total[lane / 4] = 5.96046448e-08f * of_pairs;
    }
  }
  {
    const float sum = sum4(of_piece[2]) + sum4(of_piece[3]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    const float of_pairs = of_pair + simd_shuffle_xor(of_pair, 2);
    if (lane % 4 == 0) {
      total[16u + lane / 4] = 5.96046448e-08f * of_pairs;
    }
  }
  uint upper[8];
  uint lower[8];
  {
    const float2 v = float2(of_piece[0].x, of_piece[0].z);
    upper[0] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[0]);
    lower[0] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[0].y, of_piece[0].w);
    upper[1] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[1]);
    lower[1] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[1].x, of_piece[1].z);
    upper[2] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[2]);
    lower[2] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[1].y, of_piece[1].w);
    upper[3] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[3]);
    lower[3] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].x, of_piece[2].z) * 0.0625f;
    upper[4] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[4]);
    lower[4] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].y, of_piece[2].w) * 0.0625f;
    upper[5] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[5]);
    lower[5] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[3].x, of_piece[3].z) * 0.0625f;
    upper[6] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[6]);
    lower[6] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[3].y, of_piece[3].w) * 0.0625f;
    upper[7] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[7]);
    lower[7] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  threadgroup uint4* to = stage + (lane / 2 % 4 * 4 + lane % 2 * 2) * 9u + lane / 8 * 2;
  to[0] = uint4(upper[0], upper[1], upper[2], upper[3]);
  to[9] = uint4(upper[4], upper[5], upper[6], upper[7]);
  to[1] = uint4(lower[0], lower[1], lower[2], lower[3]);
  to[10] = uint4(lower[4], lower[5], lower[6], lower[7]);
  return exponent;
}
inline void ask_q4_k(threadgroup uint4* to, const device uint8_t* weight, ulong at, ulong ups, uint lane) {
#pragma unroll
  for (uint j = 0; j < 9u; j++) {
    const uint i = lane + 32u * j;
    const uint r = i / 18u;
    const ulong begin = (r < 8u ? at : ups) + (ulong)(r * 288u);
    MLXR_COPY_AHEAD(to + i, (const device uint4*)(weight + begin + i % 18u * 16u));
  }
}
// ---- kernel
[[kernel]] void gate_up_5962f323(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint share = simdgroup_index_in_threadgroup % 1u;
  const device bfloat16_t* input = x;
  MLXR_THREADGROUP(uint4, ring, 1152);
  // Of each 512 columns of x 16 rows: four steps, by halves of a pair and halves of a piece; a row has a step's four pairs and ends
  // with zeros, for lanes whose columns belong to another pair. And the sums of each pair's runs, and the exponent.
  MLXR_THREADGROUP(uint4, staged, 144);
  MLXR_THREADGROUP(float, totals, 32);
  MLXR_THREADGROUP(uint, exponents, 1);
  MLXR_THREADGROUP(float, shares, 128);
  MLXR_THREADGROUP(float, squares_of, 2);
  float4 squares = float4(0.0f);
  threadgroup uint4* own = ring + simdgroup_index_in_threadgroup * 576u;
  const uint group = lane / 4, pair_of_step = lane % 4;
  // Column g of x belongs to pair g / 2.
  const bool holds = group / 2 == pair_of_step;
  const threadgroup uint4* of_lane = staged + (holds ? pair_of_step * 2 + group % 2 : 8u);
  uint of_all, end;
  {
    of_all = threadgroup_position_in_grid.x * 64u;
    end = 512u;
    const uint first = of_all + simdgroup_index_in_threadgroup / 1u * 8u;
    const uint tiles = first < end ? min(4u, (end - first + 15u) / 16u) : 0u;
    const uint steps = tiles * ((1u - share) / 1u);
    // Rows of the second half follow those of the first, as a simdgroup counts them.
    const ulong at = (ulong)((long)first) * 288u;
    const ulong ups = (ulong)((long)first + 504) * 288u;
    uint asked = 0, asked_pass = 0, asked_unit = share;
#pragma unroll 1
    while (asked < MLXR_AHEAD(2)) {
      if (asked < steps) {
        const ulong more = (ulong)(asked_pass * 4608u + asked_unit * 288u);
        ask_q4_k(own + asked % 2u * 288u, weight, at + more, ups + more, lane);
        asked_unit += 1u;
        if (asked_unit >= 1u) {
          asked_unit = share;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
    }
    if (thread_index_in_threadgroup < 1u && of_all + 48u <= end) {
      MLXR_WANT_RUN(weight + (0ul + (ulong)((long)(of_all) + 32) * 288u), 2016u);
      MLXR_WANT_RUN(weight + (0ul + (ulong)((long)(of_all) + 544) * 288u), 2016u);
    }

    float4 norms[1][4];
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      thread float4* of_norm = norms[j];
      const uint piece = min(simdgroup_index_in_threadgroup + j * 2u, 0u) * 32u + lane;
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        const uint column = piece / 4u * 64u + piece % 4u * 8u + run * 32u;
        load_f32_8(norm + column, of_norm + run * 2u);
      }
    }
    MLXR_AWAIT_INPUTS()
    uint4 numbers[1][2];
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      thread uint4* of_x = numbers[j];
      const uint piece = min(simdgroup_index_in_threadgroup + j * 2u, 0u) * 32u + lane;
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        const uint column = piece / 4u * 64u + piece % 4u * 8u + run * 32u;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          of_x[run * 1u + i] = ((const device uint4*)(input + column))[i];
        }
      }
    }
#pragma unroll 1
    while (asked < 2u) {
      if (asked < steps) {
        const ulong more = (ulong)(asked_pass * 4608u + asked_unit * 288u);
        ask_q4_k(own + asked % 2u * 288u, weight, at + more, ups + more, lane);
        asked_unit += 1u;
        if (asked_unit >= 1u) {
          asked_unit = share;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
    }
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      const uint unit = simdgroup_index_in_threadgroup + j * 2u;
      if (unit >= 1u) {
        break;
      }
      threadgroup uint4* stage = staged + unit * 144u;
      threadgroup float* total = totals + unit * 32u;
      if (lane < 16) {
        stage[lane * 9u + 8u] = uint4(0u);
      }
      const uint exponent = stage_q4_k(numbers[j], norms[j], &squares, lane, stage, total);
      if (lane == 0) {
        exponents[unit] = exponent;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sums[2];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      sums[r] = 0.0f;
    }
    uint pass = 0, unit = share;
#pragma unroll 1
    for (uint step = 0; step < steps; step++) {
      MLXR_AWAIT_COPIES(1);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const threadgroup uint8_t* near = (const threadgroup uint8_t*)(own + step % 2u * 288u);
      const threadgroup uint4* columns = of_lane + unit * 144u;
      const threadgroup float* total = totals + unit * 32u;
      Near_q4_k w[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        w[r] = Near_q4_k{near + (r * 8 + group) * 288u};
      }
      Wide_q4_k raw[1][2];
      float of_block[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        of_block[r] = 0.0f;
      }
      const uint i = 0;
      const uint take = 0;
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        raw[0][r] = wide_q4_k(w[r], pair_of_step);
        load_q4_k(raw[0][r], w[r], pair_of_step, 0);
        load_q4_k(raw[0][r], w[r], pair_of_step, 1);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (asked < steps) {
        const ulong more = (ulong)(asked_pass * 4608u + asked_unit * 288u);
        ask_q4_k(own + asked % 2u * 288u, weight, at + more, ups + more, lane);
        asked_unit += 1u;
        if (asked_unit >= 1u) {
          asked_unit = share;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
      {
        float2 of_take[2];
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          of_take[r] = float2(0.0f);
        }
#pragma unroll
        for (uint s = 0; s < 2; s++) {
          float4 c[2][1];
#pragma unroll
          for (uint half_pair = 0; half_pair < 4; half_pair++) {
            uint2 b[4];
#pragma unroll
            for (uint j = 0; j < 2; j++) {
              const uint4 part = columns[((take * 2 + s) * 8 + half_pair * 2 + j) * 9u];
              b[2 * j] = part.xy;
              b[2 * j + 1] = part.zw;
            }
#pragma unroll
            for (uint run = 0; run < 2u; run++) {
#pragma unroll
              for (uint r = 0; r < 1u; r++) {
                uint even[4], odd[4];
                pairs_q4_k(raw[i][2 * r], s * 4 + half_pair, run, even);
                pairs_q4_k(raw[i][2 * r + 1], s * 4 + half_pair, run, odd);
#pragma unroll
                for (uint m = 0; m < 2u; m++) {
                  const uint4 a = uint4(even[2 * m], odd[2 * m], even[2 * m + 1], odd[2 * m + 1]);
                  const uint2 x = b[run * 2u + m];
                  c[run][r] = half_pair + m == 0 ? mma_f16(a, x, lane) : mma_f16(a, x, c[run][r], lane);
                }
              }
            }
          }
#pragma unroll
          for (uint run = 0; run < 2u; run++) {
            const float more = total[run * 16u + (take * 4 + pair_of_step) * 2 + s];
#pragma unroll
            for (uint r = 0; r < 2u; r++) {
              const float2 both = r % 2 == 0 ? c[run][r / 2].xy : c[run][r / 2].zw;
              const float2 scale = wide_scale_q4_k(raw[i][r], s * 2 + run);
              of_take[r] += float2(both.x + both.y, more) * scale;
            }
          }
        }
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float2 factor = wide_factor_q4_k(raw[i][r]);
          of_block[r] += of_take[r].x * factor.x + of_take[r].y * factor.y;
        }
      }
      const float back = as_type<float>((exponents[unit] + 10u) << 23);
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        sums[r] += of_block[r] * back;
      }
      unit += 1u;
      if (unit >= 1u) {
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float pair = sums[r] + simd_shuffle_xor(sums[r], 1);
          const float sum = pair + simd_shuffle_xor(pair, 2);
          if (pair_of_step == 0) {
            shares[(pass * 2u + simdgroup_index_in_threadgroup) * 16u + r * 8 + group] = sum;
          }
          sums[r] = 0.0f;
        }
        unit = share;
        pass++;
      }
    }
  }
  {
    const float sum = simd_sum(sum4(squares));
    if (lane == 0) {
      squares_of[simdgroup_index_in_threadgroup] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float of_row = 0.0f;
#pragma unroll
  for (uint s = 0; s < 2u; s++) {
    of_row += squares_of[s];
  }
  const float scale = metal::precise::rsqrt(of_row * 0.001953125f + 9.99999975e-06f);
  for (uint at = thread_index_in_threadgroup; at < 64u && of_all + at < end; at += 64u) {
    const uint o = of_all + at;
    const uint in_tile = at % 16u;
    const uint of_rows = ((at / 16u) * 2u + in_tile / 8u * 1u) * 16u + in_tile % 8u;
    float y = 0.0f;
    float up = 0.0f;
#pragma unroll
    for (uint s = 0; s < 1u; s++) {
      const uint at_sum = of_rows + s * 16u;
      y += shares[at_sum];
      up += shares[at_sum + 8u];
    }
    const ulong place = o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (bfloat16_t)y;
  }}
