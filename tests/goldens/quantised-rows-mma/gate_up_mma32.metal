// gate_up_mma32_46876244
// small spec of a test
//
// Projection of several rows by matrix instructions: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A threadgroup multiplies 32 rows of the weight by 32 rows of x; simdgroup s takes blocks s, s + 4 ... of 64 columns. A lane
// unpacks a piece of 16 elements of rows g, g + 8 ... of the weight to bf16, and reads the same columns of rows of x.
// That permutes the columns of both alike, which changes no product.
// Then the simdgroups' sums are added up, 8 rows of x at a time.
// Grid: (32, ceil(tokens / 32)) threadgroups of 4 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [147456] u8
//     rows 0 to 1023: [1024, 256] q4_k at byte 0
//   out        [tokens, 512] bf16
//   dims       [8] u32: tokens, seqs, rows, tiles
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

#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
inline void piece_of_q4_k(Raw_q4_k raw, thread uint4* p) {
  float4 u0[2];
  values_q4_k(raw, 0, u0);
  p[0] = pack_bf16_8(u0[0], u0[1]);
  float4 u1[2];
  values_q4_k(raw, 1, u1);
  p[1] = pack_bf16_8(u1[0], u1[1]);
}
// The bf16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return as_type<float2>(uint2(pair << 16, pair & 0xffff0000u));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_bf16(uint4 a, uint2 b, float4 c, uint lane) {
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
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

// ---- kernel
[[kernel]] void gate_up_mma32_46876244(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, share = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint first = threadgroup_position_in_grid.x * 16u;
  const uint end = 512u;

  const uint first_row = threadgroup_position_in_grid.y * 32u;
  const uint count = min(dims[0] - first_row, 32u);
  uint of_x[4];
#pragma unroll
  for (uint n = 0; n < 4u; n++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(n * 8 + group, count - 1);
    of_x[n] = row * 256u;
  }
  float4 sums[2][4];
#pragma unroll
  for (uint m = 0; m < 2u; m++) {
#pragma unroll
    for (uint n = 0; n < 4u; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  // Weights of two steps are in flight; steps past the end repeat the last one and are not multiplied.
  {
    Row_q4_k w[4];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      const uint row = min(first + r * 8 + group, end - 1);
      w[r] = Row_q4_k{weight + (ulong)row * 144u};
      w[2 + r] = Row_q4_k{weight + (ulong)(row + 512u) * 144u};
    }
    Raw_q4_k raw[2][4];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[0][r] = raw_q4_k(w[r], min(share, 3u) * 4 + quad);
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[1][r] = raw_q4_k(w[r], min(share + 4, 3u) * 4 + quad);
      }
    MLXR_AWAIT_INPUTS()
    uint step = share;
    for (; step + 4 < 4u; step += 8u) {
      {
        const uint piece = step * 4 + quad, column = piece / 4u * 64u + piece % 4u * 8u;
        uint4 b[4][2];
#pragma unroll
        for (uint n = 0; n < 4u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 32);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_q4_k(raw[0][2 * m], even);
          piece_of_q4_k(raw[0][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].z, odd[i].z, even[i].w, odd[i].w), b[n][i].zw, sums[m][n], lane);
            }
          }
        }
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[0][r] = raw_q4_k(w[r], min(step + 8, 3u) * 4 + quad);
      }
      {
        const uint piece = (step + 4) * 4 + quad, column = piece / 4u * 64u + piece % 4u * 8u;
        uint4 b[4][2];
#pragma unroll
        for (uint n = 0; n < 4u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 32);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_q4_k(raw[1][2 * m], even);
          piece_of_q4_k(raw[1][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].z, odd[i].z, even[i].w, odd[i].w), b[n][i].zw, sums[m][n], lane);
            }
          }
        }
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[1][r] = raw_q4_k(w[r], min(step + 12, 3u) * 4 + quad);
      }
    }
    if (step < 4u) {
      {
        const uint piece = step * 4 + quad, column = piece / 4u * 64u + piece % 4u * 8u;
        uint4 b[4][2];
#pragma unroll
        for (uint n = 0; n < 4u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 32);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_q4_k(raw[0][2 * m], even);
          piece_of_q4_k(raw[0][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 4u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].z, odd[i].z, even[i].w, odd[i].w), b[n][i].zw, sums[m][n], lane);
            }
          }
        }
      }
    }
  }
  // Sums of each simdgroup: 8 rows of x, 36 numbers apart, so that lanes write to different banks.
  MLXR_THREADGROUP(float, shares, 1152);
#pragma unroll
  for (uint n = 0; n < 4u; n++) {
    if (n * 8 >= count) {
      break;
    }
    threadgroup float* mine = shares + share * 288u + quad * 72u + group;
#pragma unroll
    for (uint m = 0; m < 2u; m++) {
      mine[m * 16] = sums[m][n].x;
      mine[m * 16 + 36] = sums[m][n].y;
      mine[m * 16 + 8] = sums[m][n].z;
      mine[m * 16 + 44] = sums[m][n].w;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 128u; i += 128u) {
      const uint column = i / 16u, row = first_row + n * 8 + column, o = first + i % 16u;
      const threadgroup float* of_row = shares + column * 36u + i % 16u;
      float y = 0.0f;
      float up = 0.0f;
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        y += of_row[s * 288u];
        up += of_row[s * 288u + 16u];
      }
      if (n * 8 + column < count) {
        const ulong place = (ulong)row * 512u + o;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
