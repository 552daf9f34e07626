// gate_up_75beaed2
// small spec of a test
//
// Projection of one row: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// The norm costs no pass of its own: lanes add up x^2 in the same loop, and 1/rms scales the finished dot products.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 128 threadgroups of 2 simdgroups.
//   x          [tokens, 256] f32
//   weight     [163840] u8
//     rows 0 to 511: [512, 256] q4_k at byte 0
//     rows 512 to 1023: [512, 256] q5_k at byte 73728
//   norm       [256] f32
//   out        [tokens, 512] f32
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
struct Row_q5_k {
  const device uint8_t* blocks;
};
struct Raw_q5_k { uint2 q; uint2 high; PairScales scales; };
inline Raw_q5_k raw_q5_k(Row_q5_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 176u;
  const uint pair = piece % 16u / 4u;
  const uint2 high = load_u32x2(block + 16u + piece % 4u * 8u);
  Raw_q5_k raw;
  raw.q = load_u32x2(block + 48u + piece % 16u * 8u);
  raw.high = uint2(high.x >> (2u * pair), high.y >> (2u * pair));
  raw.scales = pair_scales(load_u32x4(block), pair);
  return raw;
}
inline void codes_q5_k(Raw_q5_k raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint low = (raw.q[i] >> (4u * run)) & 0x0f0f0f0fu;
    c[i] = unsigned_bytes(low | ((raw.high[i] >> run) & 0x01010101u) << 4);
  }
}
inline float2 scale_q5_k(Raw_q5_k raw, uint run) { return scale_of(raw.scales, run); }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q5_k(Raw_q5_k raw, uint run, thread float4* c) {
  codes_q5_k(raw, run, c);
  const float2 scale = scale_q5_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }


// ---- kernel
[[kernel]] void gate_up_75beaed2(
  const device float* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint first = (threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) * 2u;
  const uint end = 512u;

  if (first >= end) {
    return;
  }
  const device float* input = x;
  float4 sums[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    sums[r] = float4(0.0f);
  }
  float4 squares = float4(0.0f);

  {
  Row_q4_k w[2];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r;
    w[r] = Row_q4_k{weight + (ulong)row * 144u};
  }
  float4 norms[2][2];
#pragma unroll
  for (uint run = 0; run < 2u; run++) {
    const uint column = min(lane, 15u) / 4u * 64u + min(lane, 15u) % 4u * 8u;
    load_f32_8(norm + column + run * 32u, norms[run]);
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_q4_k raws[1][2];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      raws[step][r] = raw_q4_k(w[r], min(lane + step * 32u, 15u));
    }
  }
  MLXR_AWAIT_INPUTS()
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 16u) {
      break;
    }
    const thread Raw_q4_k* raw = raws[step];
    const uint column = piece / 4u * 64u + piece % 4u * 8u;
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 v[2];
      const thread float4* n = norms[run];
      load_f32_8(input + column + run * 32u, v);
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        squares += v[j] * v[j];
        v[j] *= n[j];
      }
      const float total = sum4(v[0]) + sum4(v[1]);
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        float4 c[2];
        codes_q4_k(raw[r], run, c);
        const float2 factor = scale_q4_k(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 2u; j++) {
          products += c[j] * v[j];
        }
        sums[r] += products * factor.x;
        sums[r].x += total * factor.y;
      }
    }
  }
  }
  {
  Row_q5_k w[2];
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const uint row = first + r;
    w[r] = Row_q5_k{weight + 73728ul + (ulong)row * 176u};
  }
  float4 norms[2][2];
#pragma unroll
  for (uint run = 0; run < 2u; run++) {
    const uint column = min(lane, 15u) / 4u * 64u + min(lane, 15u) % 4u * 8u;
    load_f32_8(norm + column + run * 32u, norms[run]);
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_q5_k raws[1][2];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      raws[step][r] = raw_q5_k(w[r], min(lane + step * 32u, 15u));
    }
  }
  MLXR_AWAIT_INPUTS()
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 16u) {
      break;
    }
    const thread Raw_q5_k* raw = raws[step];
    const uint column = piece / 4u * 64u + piece % 4u * 8u;
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 v[2];
      const thread float4* n = norms[run];
      load_f32_8(input + column + run * 32u, v);
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        v[j] *= n[j];
      }
      const float total = sum4(v[0]) + sum4(v[1]);
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        float4 c[2];
        codes_q5_k(raw[r], run, c);
        const float2 factor = scale_q5_k(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 2u; j++) {
          products += c[j] * v[j];
        }
        sums[2 + r] += products * factor.x;
        sums[2 + r].x += total * factor.y;
      }
    }
  }
  }
  const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.00390625f + 9.99999975e-06f);
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
  float up = 0.0f;
#pragma unroll
  for (uint r = 0; r < 2u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
    const float total_up = simd_sum(sum4(sums[2 + r]));
    up = lane == r ? total_up : up;
  }
  const uint o = first + lane;
  if (lane < 2u && o < end) {
    const ulong place = o;
    y *= scale;
    up *= scale;
    y = activate(y) * up;
    out[place] = (float)y;
  }
}
