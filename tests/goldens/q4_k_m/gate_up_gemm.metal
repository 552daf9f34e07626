// gate_up_gemm_d701434c
// small spec of a test
//
// Projection of many rows: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A threadgroup makes 32 outputs of 32 rows, 32 columns at a time: it puts its rows of x, normalised, and its 64 rows
// of the weight, unpacked, into threadgroup memory, and a thread multiplies 4 rows of x by 4 rows of the weight. So a
// block of the weight is unpacked once for 32 rows.
// Grid: (16, ceil(tokens / 32)) threadgroups of 4 simdgroups.
//   x          [tokens, 256] f32
//   weight     [163840] u8
//     rows 0 to 511: [512, 256] q4_k at byte 0
//     rows 512 to 1023: [512, 256] q5_k at byte 73728
//   norm       [256] f32
//   out        [tokens, 512] f32
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
[[kernel]] void gate_up_gemm_d701434c(
  const device float* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device float* norm [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device float* out [[buffer(4)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint thread_id = thread_index_in_threadgroup;
  const uint first = threadgroup_position_in_grid.x * 32u;
  const uint end = 512u;

  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 32u;
  // Tiles of x and of the weight, rows 36 numbers apart; and for each row of x 1 / rms, or mean and 1 / deviation.
  MLXR_THREADGROUP(float4, tile_x, 288);
  MLXR_THREADGROUP(float4, tile_w, 576);
  MLXR_THREADGROUP(float2, row_norm, 32);
  // A thread fills a quarter of a row of x, and half a row of the weight.
  const uint x_row = min(first_row + thread_id / 4u, count - 1);
  const uint x_column = thread_id % 4u * 8u;
  const device float* input = x + (ulong)x_row * 256u + x_column;
  const uint w_row = thread_id / 2u;
  const uint w_half = thread_id % 2u;
  const uint w_out = min(first + w_row % 32u, end - 1);
  // This thread's rows of x and of the weight are thread_id / 16 + 8 * i and thread_id % 16 + 16 * j.
  float sums[4][4];
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
#pragma unroll
    for (uint j = 0; j < 4u; j++) {
      sums[i][j] = 0.0f;
    }
  }
  float squares = 0.0f;
  for (uint chunk = 0; chunk < 8u; chunk++) {
    {
      float4 v[2];
      float4 n[2];
      load_f32_8(norm + x_column + chunk * 32u, n);

      load_f32_8(input + chunk * 32u, v);
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        squares += sum4(v[j] * v[j]);
        v[j] *= n[j];
      }
      tile_x[(thread_id / 4u * 36u + x_column) / 4u] = v[0];
      tile_x[(thread_id / 4u * 36u + x_column) / 4u + 1] = v[1];
    }
    if (w_row / 32u == 0u) {
      const Row_q4_k w = Row_q4_k{weight + (ulong)w_out * 144u};
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
        const uint at = w_half * 2u + i;
        const Raw_q4_k raw = raw_q4_k(w, chunk / 2u * 4u + at);
        float4 u[2];
        values_q4_k(raw, chunk % 2u, u);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          tile_w[(w_row * 36u + at * 8u) / 4u + j] = u[j];
        }
      }
    }
    if (w_row / 32u == 1u) {
      const Row_q5_k w = Row_q5_k{weight + 73728ul + (ulong)w_out * 176u};
#pragma unroll
      for (uint i = 0; i < 2u; i++) {
        const uint at = w_half * 2u + i;
        const Raw_q5_k raw = raw_q5_k(w, chunk / 2u * 4u + at);
        float4 u[2];
        values_q5_k(raw, chunk % 2u, u);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          tile_w[(w_row * 36u + at * 8u) / 4u + j] = u[j];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint c = 0; c < 8; c++) {
      float4 a[4];
      float4 w[4];
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        a[i] = tile_x[(thread_id / 16u + 8u * i) * 9u + c];
      }
#pragma unroll
      for (uint j = 0; j < 4u; j++) {
        w[j] = tile_w[(thread_id % 16u + 16u * j) * 9u + c];
      }
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
#pragma unroll
        for (uint j = 0; j < 4u; j++) {
          sums[i][j] += a[i].x * w[j].x;
          sums[i][j] += a[i].y * w[j].y;
          sums[i][j] += a[i].z * w[j].z;
          sums[i][j] += a[i].w * w[j].w;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  squares += simd_shuffle_xor(squares, 1);
  squares += simd_shuffle_xor(squares, 2);
  if (thread_id % 4u == 0) {
    row_norm[thread_id / 4u] =
        float2(metal::precise::rsqrt(squares * 0.00390625f + 9.99999975e-06f), 0.0f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    const uint row = first_row + thread_id / 16u + 8u * i;
    const float scale = row_norm[thread_id / 16u + 8u * i].x;
#pragma unroll
    for (uint j = 0; j < 2u; j++) {
      const uint o = first + thread_id % 16u + 16u * j;
      if (row < count && o < end) {
        const ulong place = (ulong)row * 512u + o;
        float y = sums[i][j];
        float up = sums[i][2u + j];
        y *= scale;
        up *= scale;
        y = activate(y) * up;
        out[place] = (float)y;
      }
    }
  }
}
