// down_b5d17093
// small spec of a test
//
// Projection of one row: out = x @ weight.T + residual.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 32 threadgroups of 2 simdgroups.
//   x          [tokens, 512] f32
//   weight     [90112] u8
//     rows 0 to 255: [256, 512] affine5_g64_f16 at byte 0, 81920, 86016
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

inline void load_f32_16(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
  v[2] = *(const device float4*)(p + 8);
  v[3] = *(const device float4*)(p + 12);
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
struct Row_affine5_g64_f16 {
  const device uint8_t* weight;
  const device uint8_t* scales;
  const device uint8_t* biases;
};
struct Raw_affine5_g64_f16 { uint q[3]; float2 scale; };
inline Raw_affine5_g64_f16 raw_affine5_g64_f16(Row_affine5_g64_f16 row, uint piece) {
  const device uint8_t* q = row.weight + piece * 10u;
  const uint group = piece / 4u;
  Raw_affine5_g64_f16 raw;
  raw.scale.x = (float)((const device float16_t*)row.scales)[group];
  raw.scale.y = (float)((const device float16_t*)row.biases)[group];
  raw.q[0] = load_u32_2(q + 0);
  raw.q[1] = load_u32_2(q + 4);
  raw.q[2] = (uint)*(const device uint16_t*)(q + 8);
  return raw;
}
inline void codes_affine5_g64_f16(Raw_affine5_g64_f16 raw, uint run, thread float4* c) {
  c[0] = float4(
      (float)(raw.q[0] & 31u),
      (float)((raw.q[0] >> 5) & 31u),
      (float)((raw.q[0] >> 10) & 31u),
      (float)((raw.q[0] >> 15) & 31u));
  c[1] = float4(
      (float)((raw.q[0] >> 20) & 31u),
      (float)((raw.q[0] >> 25) & 31u),
      (float)((raw.q[0] >> 30 | raw.q[1] << 2) & 31u),
      (float)((raw.q[1] >> 3) & 31u));
  c[2] = float4(
      (float)((raw.q[1] >> 8) & 31u),
      (float)((raw.q[1] >> 13) & 31u),
      (float)((raw.q[1] >> 18) & 31u),
      (float)((raw.q[1] >> 23) & 31u));
  c[3] = float4(
      (float)((raw.q[1] >> 28 | raw.q[2] << 4) & 31u),
      (float)((raw.q[2] >> 1) & 31u),
      (float)((raw.q[2] >> 6) & 31u),
      (float)((raw.q[2] >> 11) & 31u));
}
inline float2 scale_affine5_g64_f16(Raw_affine5_g64_f16 raw, uint run) { return raw.scale; }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_affine5_g64_f16(Raw_affine5_g64_f16 raw, uint run, thread float4* c) {
  codes_affine5_g64_f16(raw, run, c);
  const float2 scale = scale_affine5_g64_f16(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}


// ---- kernel
[[kernel]] void down_b5d17093(
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
  Row_affine5_g64_f16 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_affine5_g64_f16{weight + (ulong)row * 320u, weight + 81920ul + (ulong)row * 16u, weight + 86016ul + (ulong)row * 16u};
  }
  for (uint piece = lane; piece < 32u; piece += 32) {
    const uint column = piece * 16u;
    Raw_affine5_g64_f16 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_affine5_g64_f16(w[r], piece);
    }
    MLXR_AWAIT_INPUTS()
    if (piece == lane) {
      of_residual = (float)residual[min(first + lane, end - 1)];
    }
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      load_f32_16(input + column + run * 16u, v);

      const float total = sum4(v[0]) + sum4(v[1]) + sum4(v[2]) + sum4(v[3]);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[4];
        codes_affine5_g64_f16(raw[r], run, c);
        const float2 factor = scale_affine5_g64_f16(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 4u; j++) {
          products += c[j] * v[j];
        }
        sums[r] += products * factor.x;
        sums[r].x += total * factor.y;
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
