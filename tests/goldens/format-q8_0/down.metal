// down_f8cb1da9
// small spec of a test
//
// Projection of one row: out = x @ weight.T + residual.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 32 threadgroups of 2 simdgroups.
//   x          [tokens, 512] f32
//   weight     [139264] u8
//     rows 0 to 255: [256, 512] q8_0 at byte 0
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
struct Row_q8_0 {
  const device uint8_t* blocks;
};
struct Raw_q8_0 { uint q[4]; float scale; };
inline Raw_q8_0 raw_q8_0(Row_q8_0 row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 2u * 34u;
  Raw_q8_0 raw;
  raw.scale = load_half(block);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.q[i] = load_u32_2(block + 2u + piece % 2u * 16u + i * 4u);
  }
  return raw;
}
inline void codes_q8_0(Raw_q8_0 raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    c[i] = signed_bytes(raw.q[i]);
  }
}
inline float2 scale_q8_0(Raw_q8_0 raw, uint run) { return float2(raw.scale, 0.0f); }
// A run's elements.
inline void values_q8_0(Raw_q8_0 raw, uint run, thread float4* c) {
  codes_q8_0(raw, run, c);
  const float2 scale = scale_q8_0(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
  }
}


// ---- kernel
[[kernel]] void down_f8cb1da9(
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
  Row_q8_0 w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_q8_0{weight + (ulong)row * 544u};
  }
  for (uint piece = lane; piece < 32u; piece += 32) {
    const uint column = piece * 16u;
    Raw_q8_0 raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_q8_0(w[r], piece);
    }
    MLXR_AWAIT_INPUTS()
    if (piece == lane) {
      of_residual = (float)residual[min(first + lane, end - 1)];
    }
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      load_f32_16(input + column + run * 16u, v);

#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[4];
        codes_q8_0(raw[r], run, c);
        const float2 factor = scale_q8_0(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 4u; j++) {
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
