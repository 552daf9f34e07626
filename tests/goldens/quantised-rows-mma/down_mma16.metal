// down_mma16_2946d91a
// small spec of a test
//
// Projection of several rows by matrix instructions: out = x @ weight.T + residual.
// A threadgroup multiplies 32 rows of the weight by 16 rows of x; simdgroup s takes blocks s, s + 4 ... of 64 columns. A lane
// unpacks a piece of 16 elements of rows g, g + 8 ... of the weight to bf16, and reads the same columns of rows of x.
// That permutes the columns of both alike, which changes no product.
// Then the simdgroups' sums are added up, 8 rows of x at a time.
// Grid: (8, ceil(tokens / 16)) threadgroups of 4 simdgroups.
//   x          [tokens, 512] bf16
//   weight     [73728] u8
//     rows 0 to 255: [256, 512] affine4_g64_bf16 at byte 0, 65536, 69632
//   residual   [tokens, 256] bf16
//   out        [tokens, 256] bf16
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

#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
inline void piece_of_affine4_g64_bf16(Raw_affine4_g64_bf16 raw, thread uint4* p) {
  float4 u0[4];
  values_affine4_g64_bf16(raw, 0, u0);
  p[0] = pack_bf16_8(u0[0], u0[1]);
  p[1] = pack_bf16_8(u0[2], u0[3]);
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
// ---- kernel
[[kernel]] void down_mma16_2946d91a(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device bfloat16_t* residual [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, share = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint first = threadgroup_position_in_grid.x * 32u;
  const uint end = 256u;

  const uint first_row = threadgroup_position_in_grid.y * 16u;
  const uint count = min(dims[0] - first_row, 16u);
  uint of_x[2];
#pragma unroll
  for (uint n = 0; n < 2u; n++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(n * 8 + group, count - 1);
    of_x[n] = row * 512u;
  }
  float4 sums[2][2];
#pragma unroll
  for (uint m = 0; m < 2u; m++) {
#pragma unroll
    for (uint n = 0; n < 2u; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  // Weights of two steps are in flight; steps past the end repeat the last one and are not multiplied.
  {
    Row_affine4_g64_bf16 w[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint row = min(first + r * 8 + group, end - 1);
      w[r] = Row_affine4_g64_bf16{weight + (ulong)row * 256u, weight + 65536ul + (ulong)row * 16u, weight + 69632ul + (ulong)row * 16u};
    }
    Raw_affine4_g64_bf16 raw[2][4];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[0][r] = raw_affine4_g64_bf16(w[r], min(share, 7u) * 4 + quad);
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[1][r] = raw_affine4_g64_bf16(w[r], min(share + 4, 7u) * 4 + quad);
      }
    MLXR_AWAIT_INPUTS()
    uint step = share;
    for (; step + 4 < 8u; step += 8u) {
      {
        const uint piece = step * 4 + quad, column = piece * 16u;
        uint4 b[2][2];
#pragma unroll
        for (uint n = 0; n < 2u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 8);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_affine4_g64_bf16(raw[0][2 * m], even);
          piece_of_affine4_g64_bf16(raw[0][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].z, odd[i].z, even[i].w, odd[i].w), b[n][i].zw, sums[m][n], lane);
            }
          }
        }
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[0][r] = raw_affine4_g64_bf16(w[r], min(step + 8, 7u) * 4 + quad);
      }
      {
        const uint piece = (step + 4) * 4 + quad, column = piece * 16u;
        uint4 b[2][2];
#pragma unroll
        for (uint n = 0; n < 2u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 8);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_affine4_g64_bf16(raw[1][2 * m], even);
          piece_of_affine4_g64_bf16(raw[1][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].z, odd[i].z, even[i].w, odd[i].w), b[n][i].zw, sums[m][n], lane);
            }
          }
        }
      }
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        raw[1][r] = raw_affine4_g64_bf16(w[r], min(step + 12, 7u) * 4 + quad);
      }
    }
    if (step < 8u) {
      {
        const uint piece = step * 4 + quad, column = piece * 16u;
        uint4 b[2][2];
#pragma unroll
        for (uint n = 0; n < 2u; n++) {
          const device bfloat16_t* input = x + of_x[n] + column;
          b[n][0] = *(const device uint4*)(input + 0);
          b[n][1] = *(const device uint4*)(input + 8);
        }
#pragma unroll
        for (uint m = 0; m < 2u; m++) {
          uint4 even[2], odd[2];
          piece_of_affine4_g64_bf16(raw[0][2 * m], even);
          piece_of_affine4_g64_bf16(raw[0][2 * m + 1], odd);
#pragma unroll
          for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
              sums[m][n] = mma_bf16(uint4(even[i].x, odd[i].x, even[i].y, odd[i].y), b[n][i].xy, sums[m][n], lane);
            }
#pragma unroll
            for (uint n = 0; n < 2u; n++) {
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
  for (uint n = 0; n < 2u; n++) {
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
    for (uint i = thread_index_in_threadgroup; i < 256u; i += 128u) {
      const uint column = i / 32u, row = first_row + n * 8 + column, o = first + i % 32u;
      const threadgroup float* of_row = shares + column * 36u + i % 32u;
      float y = 0.0f;
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        y += of_row[s * 288u];
      }
      if (n * 8 + column < count) {
        const ulong place = (ulong)row * 256u + o;
        y += (float)residual[place];
        out[place] = (bfloat16_t)y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
