// gate_up_614e20ae
// small spec of a test
//
// Projection of one row by matrix instructions: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A code's bits are an f16 number, code * 2^-24. x is scaled by a power of two for each 512 columns, and is the sum of two f16 numbers.
// A step multiplies 16 rows of the weight by four pairs of pieces: lane 4 g + t holds pair t of rows g and g + 8. x has two
// columns for each pair, upper and lower parts, and is zero elsewhere, so that a lane gets the products of its own pairs and
// applies its scales as in other kernels.
// 2 simdgroups share the columns of 16 outputs.
// The norm costs no pass of its own: x^2 is added up where x is read, and 1/rms scales the finished dot products.
// Grid: 16 threadgroups of 4 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [181248] u8
//     rows 0 to 511: [512, 256] affine4_g64_bf16 at byte 0, 65536, 69632
//     rows 512 to 1023: [512, 256] q6_k at byte 73728
//   norm       [256] f32
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
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_bf16_16(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
  unpack_bf16(*(const device uint4*)(p + 8), v + 2);
}

inline void load_f32_16(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
  v[2] = *(const device float4*)(p + 8);
  v[3] = *(const device float4*)(p + 12);
}

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
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
struct Row_affine4_g64_bf16 {
  const device uint8_t* weight;
  const device uint8_t* scales;
  const device uint8_t* biases;
};
struct Raw_affine4_g64_bf16 { uint q[2]; float2 scale; };
inline Raw_affine4_g64_bf16 raw_affine4_g64_bf16(Row_affine4_g64_bf16 row, uint piece) {
  const device uint8_t* q = row.weight + piece * 8u;
  const uint group = piece / 4u;
  Raw_affine4_g64_bf16 raw;
  raw.scale.x = (float)((const device bfloat16_t*)row.scales)[group];
  raw.scale.y = (float)((const device bfloat16_t*)row.biases)[group];
  const uint2 words = load_u32x2(q);
  raw.q[0] = words[0];
  raw.q[1] = words[1];
  return raw;
}
inline void codes_affine4_g64_bf16(Raw_affine4_g64_bf16 raw, uint run, thread float4* c) {
  const float4 even_0 = unsigned_bytes(raw.q[0] & 0x0f0f0f0fu);
  const float4 odd_0 = unsigned_bytes((raw.q[0] >> 4) & 0x0f0f0f0fu);
  c[0] = float4(even_0.x, odd_0.x, even_0.y, odd_0.y);
  c[1] = float4(even_0.z, odd_0.z, even_0.w, odd_0.w);
  const float4 even_2 = unsigned_bytes(raw.q[1] & 0x0f0f0f0fu);
  const float4 odd_2 = unsigned_bytes((raw.q[1] >> 4) & 0x0f0f0f0fu);
  c[2] = float4(even_2.x, odd_2.x, even_2.y, odd_2.y);
  c[3] = float4(even_2.z, odd_2.z, even_2.w, odd_2.w);
}
inline float2 scale_affine4_g64_bf16(Raw_affine4_g64_bf16 raw, uint run) { return raw.scale; }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_affine4_g64_bf16(Raw_affine4_g64_bf16 raw, uint run, thread float4* c) {
  codes_affine4_g64_bf16(raw, run, c);
  const float2 scale = scale_affine4_g64_bf16(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}
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
struct Wide_affine4_g64_bf16 { uint4 q; float2 scale; };
inline Wide_affine4_g64_bf16 wide_affine4_g64_bf16(Row_affine4_g64_bf16 row, uint pair) {
  const uint group = pair / 2u;
  Wide_affine4_g64_bf16 raw;
  raw.q = load_u32x4(row.weight + pair * 16u);
  raw.scale.x = (float)((const device bfloat16_t*)row.scales)[group];
  raw.scale.y = (float)((const device bfloat16_t*)row.biases)[group];
  return raw;
}
inline void pairs_affine4_g64_bf16(Wide_affine4_g64_bf16 raw, uint half_pair, uint run, thread uint* p) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    nibble_pairs(raw.q[2 * half_pair + i], p + 4 * i);
  }
}
inline float2 wide_scale_affine4_g64_bf16(Wide_affine4_g64_bf16 raw, uint run) { return raw.scale; }
inline uint stage_affine4_g64_bf16(
    const device bfloat16_t* input,
    const device float* norm,
    thread float4* squares,
    uint piece, uint lane, threadgroup uint4* stage, threadgroup float* total) {
  float4 of_piece[4];
  if (piece >= 16u) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      of_piece[j] = float4(0.0f);
    }
  } else {
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      const uint column = piece * 16u + run * 16u;
      float4 n[4];
      load_f32_16(norm + column, n);

      float4 v[4];
      load_bf16_16(input + column, v);
#pragma unroll
      for (uint j = 0; j < 4u; j++) {
        *squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint j = 0; j < 4u; j++) {
        of_piece[run * 4u + j] = v[j];
      }
    }
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
    const float sum = sum4(of_piece[0]) + sum4(of_piece[1]) + sum4(of_piece[2]) + sum4(of_piece[3]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[lane / 2] = 5.96046448e-08f * of_pair;
    }
  }
  uint upper[8];
  uint lower[8];
  {
    const float2 v = float2(of_piece[0].x, of_piece[1].x);
    upper[0] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[0]);
    lower[0] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[0].y, of_piece[1].y) * 0.0625f;
    upper[1] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[1]);
    lower[1] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[0].z, of_piece[1].z);
    upper[2] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[2]);
    lower[2] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[0].w, of_piece[1].w) * 0.0625f;
    upper[3] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[3]);
    lower[3] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].x, of_piece[3].x);
    upper[4] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[4]);
    lower[4] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].y, of_piece[3].y) * 0.0625f;
    upper[5] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[5]);
    lower[5] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].z, of_piece[3].z);
    upper[6] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[6]);
    lower[6] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].w, of_piece[3].w) * 0.0625f;
    upper[7] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[7]);
    lower[7] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  threadgroup uint4* to = stage + (lane / 8 * 4 + lane % 2 * 2) * 9u + lane / 2 % 4 * 2;
  to[0] = uint4(upper[0], upper[1], upper[2], upper[3]);
  to[9] = uint4(upper[4], upper[5], upper[6], upper[7]);
  to[1] = uint4(lower[0], lower[1], lower[2], lower[3]);
  to[10] = uint4(lower[4], lower[5], lower[6], lower[7]);
  return exponent;
}
struct Wide_q6_k { uint low[4]; uint high[2]; float scale; float scales[4]; };
inline Wide_q6_k wide_q6_k(Row_q6_k row, uint pair) {
  const device uint8_t* block = row.blocks + pair / 8u * 210u;
  const uint half_block = pair % 8u / 4u;
  const uint at = pair % 4u * 8u;
  const device char* scales = (const device char*)(block + 192u + half_block * 8u + at / 16u);
  Wide_q6_k raw;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    raw.low[i] = load_u32_2(block + half_block * 64u + at + 4u * i);
    raw.low[2 + i] = load_u32_2(block + half_block * 64u + at + 32u + 4u * i);
    raw.high[i] = load_u32_2(block + 128u + half_block * 32u + at + 4u * i);
  }
  raw.scale = load_half(block + 208);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.scales[i] = (float)scales[2u * i];
  }
  return raw;
}
// High nibbles stay where they are, so that the codes of runs 2 and 3 are 16 times as large.
inline void pairs_q6_k(Wide_q6_k raw, uint half_pair, uint run, thread uint* p) {
  const uint low = raw.low[(run & 1u) * 2u + half_pair], high = raw.high[half_pair];
  const uint left = run % 2u == 0 ? high << 4 : high << 2, right = run % 2u == 0 ? high >> 4 : high >> 6;
  const uint of_low = run < 2u ? 0x000f000fu : 0x00f000f0u, of_high = run < 2u ? 0x00300030u : 0x03000300u;
  p[0] = (low & of_low) | (left & of_high);
  p[1] = ((low >> 8) & of_low) | (right & of_high);
}
inline float2 wide_scale_q6_k(Wide_q6_k raw, uint run) { return float2(raw.scales[run], 0.0f); }
inline float2 wide_factor_q6_k(Wide_q6_k raw) { return float2(raw.scale, 0.0f); }
inline uint stage_q6_k(
    const device bfloat16_t* input,
    const device float* norm,
    thread float4* squares,
    uint piece, uint lane, threadgroup uint4* stage, threadgroup float* total) {
  float4 of_piece[4];
  if (piece >= 16u) {
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      of_piece[j] = float4(0.0f);
    }
  } else {
#pragma unroll
    for (uint run = 0; run < 4u; run++) {
      const uint column = piece / 8u * 128u + piece % 8u * 4u + run * 32u;
      float4 n[1];
      load_f32_4(norm + column, n);

      float4 v[1];
      load_bf16_4(input + column, v);
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        *squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        of_piece[run * 1u + j] = v[j];
      }
    }
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
    const float sum = sum4(of_piece[0]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[1]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[16u + lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[2]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[32u + lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[3]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[48u + lane / 2] = 1.90734863e-06f * of_pair;
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
  threadgroup uint4* to = stage + (lane / 8 * 4 + lane % 2 * 2) * 9u + lane / 2 % 4 * 2;
  to[0] = uint4(upper[0], upper[1], upper[2], upper[3]);
  to[9] = uint4(upper[4], upper[5], upper[6], upper[7]);
  to[1] = uint4(lower[0], lower[1], lower[2], lower[3]);
  to[10] = uint4(lower[4], lower[5], lower[6], lower[7]);
  return exponent;
}
// ---- kernel
[[kernel]] void gate_up_614e20ae(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint share = simdgroup_index_in_threadgroup % 2u;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup / 2u) * 16u;
  const uint end = 512u;

  const device bfloat16_t* input = x;
  // 32 pieces of x as 16 rows: four steps, by halves of a pair and halves of a piece; a row has a step's four pairs and ends with
  // zeros, for lanes whose columns belong to another pair. And the sums of each pair's runs.
  MLXR_THREADGROUP(uint4, staged, 576);
  MLXR_THREADGROUP(float, totals, 256);
  threadgroup uint4* stage = staged + simdgroup_index_in_threadgroup * 144u;
  threadgroup float* total = totals + simdgroup_index_in_threadgroup * 64u;
  const uint group = lane / 4, pair_of_step = lane % 4;
  // Column g of x belongs to pair g / 2.
  const bool holds = group / 2 == pair_of_step;
  if (lane < 16) {
    stage[lane * 9u + 8u] = uint4(0u);
  }
  const threadgroup uint4* columns = stage + (holds ? pair_of_step * 2 + group % 2 : 8u);
  float sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = 0.0f;
  }
  float4 squares = float4(0.0f);
  {
  Row_affine4_g64_bf16 w[2];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r * 8 + group;
    w[r] = Row_affine4_g64_bf16{weight + (ulong)row * 128u, weight + 65536ul + (ulong)row * 8u, weight + 69632ul + (ulong)row * 8u};
  }
  // The zeros of all rows are alike, so these lanes stay in the first row: affine gates then take 128 registers on NVIDIA instead of
  // 137, and two threadgroups fit a multiprocessor.
  const uint next = holds ? 9u : 0u;
  for (uint block = share * 32u; block < 16u; block += 64u) {
    Wide_affine4_g64_bf16 raw[2][2];
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        raw[i][r] = wide_affine4_g64_bf16(w[r], min(block / 2 + i * 4 + pair_of_step, 7u));
      }
    }
    MLXR_AWAIT_INPUTS()
    // No lane reads the last block's x any more.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const uint exponent = stage_affine4_g64_bf16(input, norm, &squares, block + lane, lane, stage, total);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float of_block[2];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      of_block[r] = 0.0f;
    }
    // Equally many for all lanes: matrix instructions need the whole simdgroup.
    const uint steps = min(4u, (16u - block + 7) / 8);
#pragma unroll
    for (uint batch = 0; batch < 4; batch += 2) {
      if (batch > 0) {
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        raw[i][r] = wide_affine4_g64_bf16(w[r], min(block / 2 + batch * 4 + i * 4 + pair_of_step, 7u));
      }
    }
      }
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
        const uint take = batch + i;
        if (take >= steps) {
          break;
        }
#pragma unroll
        for (uint s = 0; s < 1; s++) {
          float4 c[1][1];
#pragma unroll
          for (uint half_pair = 0; half_pair < 2; half_pair++) {
            uint2 b[4];
#pragma unroll
            for (uint j = 0; j < 2; j++) {
              const uint4 part = columns[((take * 1 + s) * 4 + half_pair * 2 + j) * next];
              b[2 * j] = part.xy;
              b[2 * j + 1] = part.zw;
            }
#pragma unroll
            for (uint run = 0; run < 1u; run++) {
#pragma unroll
              for (uint r = 0; r < 1u; r++) {
                uint even[8], odd[8];
                pairs_affine4_g64_bf16(raw[i][2 * r], s * 2 + half_pair, run, even);
                pairs_affine4_g64_bf16(raw[i][2 * r + 1], s * 2 + half_pair, run, odd);
#pragma unroll
                for (uint m = 0; m < 4u; m++) {
                  const uint4 a = uint4(even[2 * m], odd[2 * m], even[2 * m + 1], odd[2 * m + 1]);
                  const uint2 x = b[run * 4u + m];
                  c[run][r] = half_pair + m == 0 ? mma_f16(a, x, lane) : mma_f16(a, x, c[run][r], lane);
                }
              }
            }
          }
#pragma unroll
          for (uint run = 0; run < 1u; run++) {
            const float more = total[run * 16u + (take * 4 + pair_of_step) * 1 + s];
#pragma unroll
            for (uint r = 0; r < 2u; r++) {
              const float2 both = r % 2 == 0 ? c[run][r / 2].xy : c[run][r / 2].zw;
              const float2 scale = wide_scale_affine4_g64_bf16(raw[i][r], s * 1 + run);
              of_block[r] += (both.x + both.y) * scale.x + more * scale.y;
            }
          }
        }
      }
    }
    const float back = as_type<float>((exponent + 10u) << 23);
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      sums[r] += of_block[r] * back;
    }
  }
  }
  {
  Row_q6_k w[2];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r * 8 + group;
    w[r] = Row_q6_k{weight + 73728ul + (ulong)row * 210u};
  }
  // The zeros of all rows are alike, so these lanes stay in the first row: affine gates then take 128 registers on NVIDIA instead of
  // 137, and two threadgroups fit a multiprocessor.
  const uint next = holds ? 9u : 0u;
  for (uint block = share * 32u; block < 16u; block += 64u) {
    Wide_q6_k raw[2][2];
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        raw[i][r] = wide_q6_k(w[r], min(block / 2 + i * 4 + pair_of_step, 7u));
      }
    }
    MLXR_AWAIT_INPUTS()
    // No lane reads the last block's x any more.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float4 counted_before = float4(0.0f);
    const uint exponent = stage_q6_k(input, norm, &counted_before, block + lane, lane, stage, total);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float of_block[2];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      of_block[r] = 0.0f;
    }
    // Equally many for all lanes: matrix instructions need the whole simdgroup.
    const uint steps = min(4u, (16u - block + 7) / 8);
#pragma unroll
    for (uint batch = 0; batch < 4; batch += 2) {
      if (batch > 0) {
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        raw[i][r] = wide_q6_k(w[r], min(block / 2 + batch * 4 + i * 4 + pair_of_step, 7u));
      }
    }
      }
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
        const uint take = batch + i;
        if (take >= steps) {
          break;
        }
        float of_take[2];
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          of_take[r] = 0.0f;
        }
#pragma unroll
        for (uint s = 0; s < 1; s++) {
          float4 c[4][1];
#pragma unroll
          for (uint half_pair = 0; half_pair < 2; half_pair++) {
            uint2 b[4];
#pragma unroll
            for (uint j = 0; j < 2; j++) {
              const uint4 part = columns[((take * 1 + s) * 4 + half_pair * 2 + j) * next];
              b[2 * j] = part.xy;
              b[2 * j + 1] = part.zw;
            }
#pragma unroll
            for (uint run = 0; run < 4u; run++) {
#pragma unroll
              for (uint r = 0; r < 1u; r++) {
                uint even[2], odd[2];
                pairs_q6_k(raw[i][2 * r], s * 2 + half_pair, run, even);
                pairs_q6_k(raw[i][2 * r + 1], s * 2 + half_pair, run, odd);
#pragma unroll
                for (uint m = 0; m < 1u; m++) {
                  const uint4 a = uint4(even[2 * m], odd[2 * m], even[2 * m + 1], odd[2 * m + 1]);
                  const uint2 x = b[run * 1u + m];
                  c[run][r] = half_pair + m == 0 ? mma_f16(a, x, lane) : mma_f16(a, x, c[run][r], lane);
                }
              }
            }
          }
#pragma unroll
          for (uint run = 0; run < 4u; run++) {
            const float more = total[run * 16u + (take * 4 + pair_of_step) * 1 + s];
#pragma unroll
            for (uint r = 0; r < 2u; r++) {
              const float2 both = r % 2 == 0 ? c[run][r / 2].xy : c[run][r / 2].zw;
              const float2 scale = wide_scale_q6_k(raw[i][r], s * 4 + run);
              of_take[r] += (both.x + both.y - more) * scale.x;
            }
          }
        }
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float2 factor = wide_factor_q6_k(raw[i][r]);
          of_block[r] += of_take[r] * factor.x;
        }
      }
    }
    const float back = as_type<float>((exponent + 10u) << 23);
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      sums[2 + r] += of_block[r] * back;
    }
  }
  }
  MLXR_AWAIT_INPUTS()  // those that have no columns
  MLXR_THREADGROUP(float, shares, 132);
  {
    threadgroup float* mine = shares + simdgroup_index_in_threadgroup * 33u;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const float pair = sums[r] + simd_shuffle_xor(sums[r], 1);
      const float sum = pair + simd_shuffle_xor(pair, 2);
      if (pair_of_step == 0) {
        mine[r * 8 + group] = sum;
      }
    }
    const float sum = simd_sum(sum4(squares));
    if (lane == 0) {
      mine[32] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const threadgroup float* of_rows = shares + (simdgroup_index_in_threadgroup - share) * 33u;
  const uint mine = min(lane, 15u);
  float y = 0.0f;
  float up = 0.0f;
  float total_squares = 0.0f;
#pragma unroll
  for (uint s = 0; s < 2u; s++) {
    y += of_rows[s * 33u + mine];
    up += of_rows[s * 33u + 16u + mine];
    total_squares += of_rows[s * 33u + 32u];
  }
  const float scale = metal::precise::rsqrt(total_squares * 0.00390625f + 9.99999975e-06f);

  const uint o = first + lane;
  if (share == 0 && lane < 16u && o < end) {
    const ulong place = o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (bfloat16_t)y;
  }
}
