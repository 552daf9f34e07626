// qkv_9324757f
// small spec of a test
//
// Projection of one row: out = rms_norm(x) @ weight.T.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// The norm costs no pass of its own: lanes add up x^2 in the same loop, and 1/rms scales the finished dot products.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 48 threadgroups of 2 simdgroups.
//   x          [tokens, 256] f32
//   weight     [59520] u8
//     rows 0 to 319: [320, 256] q4_k at byte 0
//     rows 320 to 383: [64, 256] q6_k at byte 46080
//   norm       [256] f32
//   out        [tokens, 384] f32
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


// ---- kernel
[[kernel]] void qkv_9324757f(
  const device float* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  device float* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  uint first, end;
  if (threadgroup_position_in_grid.x < 40u) {
    first = ((threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup)) * 4u;
    end = 320u;
  } else {
    first = 320u + ((threadgroup_position_in_grid.x * 2u + simdgroup_index_in_threadgroup) - 80u) * 4u;
    end = 384u;
  }
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

  if (threadgroup_position_in_grid.x < 40u) {
  Row_q4_k w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
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
  Raw_q4_k raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
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
      for (uint r = 0; r < 4u; r++) {
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
  else {
  Row_q6_k w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_q6_k{weight + 46080ul + (ulong)(row - 320u) * 210u};
  }
  float4 norms[4][1];
#pragma unroll
  for (uint run = 0; run < 4u; run++) {
    const uint column = min(lane, 15u) / 8u * 128u + min(lane, 15u) % 8u * 4u;
    load_f32_4(norm + column + run * 32u, norms[run]);
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_q6_k raws[1][4];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raws[step][r] = raw_q6_k(w[r], min(lane + step * 32u, 15u));
    }
  }
  MLXR_AWAIT_INPUTS()
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 16u) {
      break;
    }
    const thread Raw_q6_k* raw = raws[step];
    const uint column = piece / 8u * 128u + piece % 8u * 4u;
#pragma unroll
    for (uint run = 0; run < 4u; run++) {
      float4 v[1];
      const thread float4* n = norms[run];
      load_f32_4(input + column + run * 32u, v);
#pragma unroll
      for (uint j = 0; j < 1u; j++) {
        squares += v[j] * v[j];
        v[j] *= n[j];
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[1];
        codes_q6_k(raw[r], run, c);
        const float2 factor = scale_q6_k(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 1u; j++) {
          products += c[j] * v[j];
        }
        sums[r] += products * factor.x;
      }
    }
  }
  }
  const float scale = metal::precise::rsqrt(simd_sum(sum4(squares)) * 0.00390625f + 9.99999975e-06f);
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
    y *= scale;
    out[place] = (float)y;
  }
}
