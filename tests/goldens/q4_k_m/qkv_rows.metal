// qkv_rows_46aec822
// small spec of a test
//
// Projection of several rows: out = rms_norm(x) @ weight.T.
// As the one-row kernel, but a simdgroup keeps 4 weight rows times 8 input rows of sums, so that each
// weight is read and unpacked once for 8 rows.
// Grid: (48, ceil(tokens / 8)) threadgroups of 2 simdgroups.
//   x          [tokens, 256] f32
//   weight     [59520] u8
//     rows 0 to 319: [320, 256] q4_k at byte 0
//     rows 320 to 383: [64, 256] q6_k at byte 46080
//   norm       [256] f32
//   out        [tokens, 384] f32
//   dims       [8] u32: tokens, seqs, rows, tiles
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
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
[[kernel]] void qkv_rows_46aec822(
  const device float* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 8u;
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
  // Rows and outputs past the end repeat the last one and are not stored.
  const device float* input[8];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    const uint row = min(first_row + t, count - 1);
    input[t] = x + (ulong)row * 256u;
  }
  float sums[8][4];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      sums[t][r] = 0.0f;
    }
  }
  float squares[8];
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    squares[t] = 0.0f;
  }
  if (threadgroup_position_in_grid.x < 40u) {
  Row_q4_k w[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first + r;
    w[r] = Row_q4_k{weight + (ulong)row * 144u};
  }
  for (uint piece = lane; piece < 16u; piece += 32) {
    const uint column = piece / 4u * 64u + piece % 4u * 8u;
    Raw_q4_k raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_q4_k(w[r], piece);
    }
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 n[2];
      load_f32_8(norm + column + run * 32u, n);

      float4 u[4][2];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        values_q4_k(raw[r], run, u[r]);
      }
#pragma unroll
      for (uint t = 0; t < 8u; t++) {
        float4 v[2];
        load_f32_8(input[t] + column + run * 32u, v);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          squares[t] += sum4(v[j] * v[j]);
          v[j] *= n[j];
        }
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
#pragma unroll
          for (uint j = 0; j < 2u; j++) {
            sums[t][r] += sum4(u[r][j] * v[j]);
          }
        }
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
  for (uint piece = lane; piece < 16u; piece += 32) {
    const uint column = piece / 8u * 128u + piece % 8u * 4u;
    Raw_q6_k raw[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      raw[r] = raw_q6_k(w[r], piece);
    }
#pragma unroll
    for (uint run = 0; run < 4u; run++) {
      float4 n[1];
      load_f32_4(norm + column + run * 32u, n);

      float4 u[4][1];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        values_q6_k(raw[r], run, u[r]);
      }
#pragma unroll
      for (uint t = 0; t < 8u; t++) {
        float4 v[1];
        load_f32_4(input[t] + column + run * 32u, v);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          squares[t] += sum4(v[j] * v[j]);
          v[j] *= n[j];
        }
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
#pragma unroll
          for (uint j = 0; j < 1u; j++) {
            sums[t][r] += sum4(u[r][j] * v[j]);
          }
        }
      }
    }
  }
  }
  // Lane t * 4 + r keeps output r of row t.
  float y = 0.0f;
  float scale = 0.0f;
#pragma unroll
  for (uint t = 0; t < 8u; t++) {
    const float mean = simd_sum(squares[t]) * 0.00390625f;
    scale = lane / 4u == t ? metal::precise::rsqrt(mean + 9.99999975e-06f) : scale;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const float total = simd_sum(sums[t][r]);
      y = lane == t * 4u + r ? total : y;
    }
  }
  const uint row = first_row + lane / 4u;
  const uint o = first + lane % 4u;
  if (lane < 32u && row < count && o < end) {
    const ulong place = (ulong)row * 384u + o;
    y *= scale;
    out[place] = (float)y;
  }
}
