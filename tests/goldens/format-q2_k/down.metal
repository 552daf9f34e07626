// down_18c89115
// small spec of a test
//
// Projection of one row: out = x @ weight.T + residual.
// A simdgroup computes 4 rows of the weight; its lanes stride over the columns, so that neighbouring lanes read
// neighbouring bytes, as wide as their alignment allows.
// Codes are multiplied by x as they are; a scale is applied once a run, and a shift to the sum of x over the run.
// Grid: 32 threadgroups of 2 simdgroups.
//   x          [tokens, 512] f32
//   weight     [43008] u8
//     rows 0 to 255: [256, 512] q2_k at byte 0
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
struct Row_q2_k {
  const device uint8_t* blocks;
};
struct Raw_q2_k { uint q; uint scales; float scale; float minimum; };
inline Raw_q2_k raw_q2_k(Row_q2_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 84u;
  const uint half_block = piece % 16u / 8u;
  const uint at = piece % 8u * 4u;
  const device uint8_t* scales = block + half_block * 8u + at / 16u;
  const uint tail = load_u32(block + 80);
  Raw_q2_k raw;
  raw.q = load_u32(block + 16u + half_block * 32u + at);
  raw.scales = (uint)scales[0] | (uint)scales[2] << 8 | (uint)scales[4] << 16 | (uint)scales[6] << 24;
  raw.scale = half_of(tail & 0xffffu);
  raw.minimum = half_of(tail >> 16);
  return raw;
}
inline void codes_q2_k(Raw_q2_k raw, uint run, thread float4* c) {
  c[0] = unsigned_bytes((raw.q >> (2u * run)) & 0x03030303u);
}
inline float2 scale_q2_k(Raw_q2_k raw, uint run) {
  const uint both = raw.scales >> (8u * run);
  return float2(raw.scale * (float)(both & 15u), -(raw.minimum * (float)((both >> 4) & 15u)));
}
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q2_k(Raw_q2_k raw, uint run, thread float4* c) {
  codes_q2_k(raw, run, c);
  const float2 scale = scale_q2_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}


// ---- kernel
[[kernel]] void down_18c89115(
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
  Row_q2_k w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_q2_k{weight + (ulong)row * 168u};
  }
  for (uint piece = lane; piece < 32u; piece += 32) {
    const uint column = piece / 8u * 128u + piece % 8u * 4u;
    Raw_q2_k raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_q2_k(w[r], piece);
    }
    MLXR_AWAIT_INPUTS()
    if (piece == lane) {
      of_residual = (float)residual[min(first + lane, end - 1)];
    }
#pragma unroll
    for (uint run = 0; run < 4u; run++) {
      float4 v[1];
      load_f32_4(input + column + run * 32u, v);

      const float total = sum4(v[0]);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        float4 c[1];
        codes_q2_k(raw[r], run, c);
        const float2 factor = scale_q2_k(raw[r], run);
        float4 products = c[0] * v[0];
#pragma unroll
        for (uint j = 1; j < 1u; j++) {
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
