// down_69c3af63
// small spec of a test
//
// Projection of one row: out = x @ weight.T + residual.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 32 threadgroups of 2 simdgroups.
//   x          [tokens, 512] f32
//   weight     [69632] u8
//     rows 0 to 255: [256, 512] mxfp4 at byte 0
//   residual   [tokens, 256] f32
//   out        [tokens, 256] f32
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
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

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
// 2^(e - 128) of an exponent byte, as bits.
inline float half_scale_e8m0(uint e) { return as_type<float>(e < 2u ? 0x00200000u << e : (e - 1u) << 23); }
// From the low nibbles of four bytes. A nibble's lower three bits are the highest of a half's exponent and fraction.
inline float4 doubled_fp4(uint u) {
  const uint even = u & 0x000f000fu;
  const uint odd = (u >> 8) & 0x000f000fu;
  const float2 a = float2(as_type<half2>((even & 0x00070007u) << 9 | (even & 0x00080008u) << 12));
  const float2 b = float2(as_type<half2>((odd & 0x00070007u) << 9 | (odd & 0x00080008u) << 12));
  return float4(a.x, b.x, a.y, b.y) * 32768.0f;
}
struct Row_mxfp4 {
  const device uint8_t* blocks;
};
struct Raw_mxfp4 { uint q[2]; float scale; };
inline Raw_mxfp4 raw_mxfp4(Row_mxfp4 row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 2u * 17u;
  const device uint8_t* q = block + 1u + piece % 2u * 8u;
  Raw_mxfp4 raw;
  raw.scale = half_scale_e8m0((uint)block[0]);
  raw.q[0] = load_u32_1(q);
  raw.q[1] = load_u32_1(q + 4);
  return raw;
}
inline void codes_mxfp4(Raw_mxfp4 raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    c[i] = doubled_fp4(raw.q[i] >> (4u * run));
  }
}
inline float2 scale_mxfp4(Raw_mxfp4 raw, uint run) { return float2(raw.scale, 0.0f); }
// A run's elements.
inline void values_mxfp4(Raw_mxfp4 raw, uint run, thread float4* c) {
  codes_mxfp4(raw, run, c);
  const float2 scale = scale_mxfp4(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
  }
}


// ---- kernel
[[kernel]] void down_69c3af63(
  const device float* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* residual [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 4u;
  const uint end = 256u;

  if (first >= end) {
    return;
  }
  const device float* input = x;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }

  float of_residual = 0.0f;
  Row_mxfp4 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_mxfp4{weight + (ulong)row * 272u};
  }
  for (uint piece = lane; piece < 32u; piece += 32) {
    const uint column = piece / 2u * 32u + piece % 2u * 8u;
    Raw_mxfp4 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_mxfp4(w[r], piece);
    }
    MLXR_AWAIT_INPUTS()
    if (piece == lane) {
      of_residual = (float)residual[min(first + lane, end - 1)];
    }
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 v[2];
      load_f32_8(input + column + run * 16u, v);

#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[2];
        codes_mxfp4(raw[r], run, c);
        const float2 factor = scale_mxfp4(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 2u; j++) {
          products += c[j] * v[j];
        }
        sums[r] += products * factor.x;
      }
    }
  }
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
  const uint o = first + lane;
  if (lane < 4u && o < end) {
    const ulong place = o;
    y += of_residual;
    out[place] = (float)y;
  }
}
