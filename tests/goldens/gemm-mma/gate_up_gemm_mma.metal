// gate_up_gemm_mma_83984450
// small spec of a test
//
// Projection of many rows by matrix instructions: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A threadgroup makes 32 outputs of 64 rows, 128 columns at a time: it puts its rows of x and its 64 rows of the weight, as
// bf16 numbers, into threadgroup memory, and a simdgroup multiplies 32 rows of x by 32 rows of the weight. A
// lane reads 16 bytes of rows g, g + 8 ... of both, from column 8 t on. That permutes the columns of both alike, which
// changes no product.
// Grid: (16, ceil(tokens / 64)) threadgroups of 4 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [143360] u8
//     rows 0 to 511: [512, 256] affine4_g64_bf16 at byte 0, 65536, 69632
//     rows 512 to 1023: [512, 256] mxfp4 at byte 73728
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

inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
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
[[kernel]] void gate_up_gemm_mma_83984450(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint thread_id = thread_index_in_threadgroup;
  const uint first = threadgroup_position_in_grid.x * 32u;
  const uint end = 512u;

  const uint count = dims[0];
  const uint first_row = threadgroup_position_in_grid.y * 64u;
  // 128 columns of each row: 4 times 32, rows of 64 bytes. Neighbouring rows of every second 32 change places, so
  // that lanes that store the same row use different banks.
  MLXR_THREADGROUP(uint4, tile_x, 1024);
  MLXR_THREADGROUP(uint4, tile_w, 1024);
  // A thread brings 16 bytes of 8 rows of x; rows past the end repeat the last one and are not stored.
  uint of_x[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    const uint x_row = min(first_row + thread_id / 16u + 8u * i, count - 1);
    of_x[i] = x_row * 32u + thread_id % 16u;
  }
  const uint x_chunk = thread_id % 16u / 4u;
  const uint x_place = x_chunk * 256u + (thread_id / 16u ^ x_chunk % 2u) * 4u + thread_id % 4u;
  const uint lane = thread_index_in_simdgroup, group = lane / 4, quad = lane % 4;
  // This simdgroup's rows of the weight begin at w_first and w_first + 32, a gate's and an up's where there are both.
  const uint w_first = simdgroup_index_in_threadgroup % 2 * 16, x_first = simdgroup_index_in_threadgroup / 2 * 32;
  const bool has_rows = first_row + x_first < count;
  float4 sums[2][4];
#pragma unroll
  for (uint m = 0; m < 2; m++) {
#pragma unroll
    for (uint n = 0; n < 4; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  uint4 next_x[8];
  Row_affine4_g64_bf16 w0[4];
  Raw_affine4_g64_bf16 raw0[4];
  const uint piece0 = thread_id % 8u;
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    const uint w_row = thread_id / 8u + 16u * i;
    const uint w_out = min(first + w_row % 32u, end - 1);
    w0[i] = Row_affine4_g64_bf16{weight + (ulong)w_out * 128u, weight + 65536ul + (ulong)w_out * 8u, weight + 69632ul + (ulong)w_out * 8u};
  }
  Row_mxfp4 w1[4];
  Raw_mxfp4 raw1[4];
  const uint piece1 = thread_id % 8u;
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    const uint w_row = thread_id / 8u + 16u * i;
    const uint w_out = min(first + w_row % 32u, end - 1);
    w1[i] = Row_mxfp4{weight + 73728ul + (ulong)w_out * 136u};
  }
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    next_x[i] = ((const device uint4*)x)[of_x[i] + 0u * 4u];
  }
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    raw0[i] = raw_affine4_g64_bf16(w0[i], 0u * 2u + piece0);
  }
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    raw1[i] = raw_mxfp4(w1[i], 0u * 2u + piece1);
  }

  for (uint step = 0; step < 8u; step += 4u) {
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      tile_x[x_place + 32u * i] = next_x[i];
    }
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const uint w_row = thread_id / 8u + 16u * i;
      if (w_row / 32u != 0u) {
        continue;
      }
#pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 u[4];
        values_affine4_g64_bf16(raw0[i], run, u);
        const uint column = piece0 * 16u + run * 16u;
        threadgroup uint4* to = tile_w + column / 32u * 256u + (w_row ^ column / 32u % 2u) * 4u;
        to[column % 32u / 8u] = pack_bf16_8(u[0], u[1]);
        to[column % 32u / 8u + 1u] = pack_bf16_8(u[2], u[3]);
      }
    }
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const uint w_row = thread_id / 8u + 16u * i;
      if (w_row / 32u != 1u) {
        continue;
      }
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 u[2];
        values_mxfp4(raw1[i], run, u);
        const uint column = piece1 / 2u * 32u + piece1 % 2u * 8u + run * 16u;
        threadgroup uint4* to = tile_w + column / 32u * 256u + (w_row ^ column / 32u % 2u) * 4u;
        to[column % 32u / 8u] = pack_bf16_8(u[0], u[1]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (step + 4u < 8u) {
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        next_x[i] = ((const device uint4*)x)[of_x[i] + (step + 4u) * 4u];
      }
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        raw0[i] = raw_affine4_g64_bf16(w0[i], (step + 4u) * 2u + piece0);
      }
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        raw1[i] = raw_mxfp4(w1[i], (step + 4u) * 2u + piece1);
      }

    }
    if (has_rows) {
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        const threadgroup uint4* of_w = tile_w + s * 256u + (w_first + (group ^ s % 2)) * 4 + quad;
        const threadgroup uint4* of_x = tile_x + s * 256u + (x_first + (group ^ s % 2)) * 4 + quad;
        uint4 even[2], odd[2];
#pragma unroll
        for (uint m = 0; m < 2; m++) {
          even[m] = of_w[m * 128];
          odd[m] = of_w[m * 128 + 32];
        }
#pragma unroll
        for (uint n = 0; n < 4; n++) {
          const uint4 b = of_x[n * 32];
#pragma unroll
          for (uint m = 0; m < 2; m++) {
            sums[m][n] = mma_bf16(uint4(even[m].x, odd[m].x, even[m].y, odd[m].y), b.xy, sums[m][n], lane);
            sums[m][n] = mma_bf16(uint4(even[m].z, odd[m].z, even[m].w, odd[m].w), b.zw, sums[m][n], lane);
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (uint n = 0; n < 4; n++) {
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group;
      if (row < count && o < end) {
        const ulong place = (ulong)row * 512u + o;
        float y = sums[0][n].x;
        float up = sums[1][n].x;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group;
      if (row < count && o < end) {
        const ulong place = (ulong)row * 512u + o;
        float y = sums[0][n].y;
        float up = sums[1][n].y;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const ulong place = (ulong)row * 512u + o;
        float y = sums[0][n].z;
        float up = sums[1][n].z;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const ulong place = (ulong)row * 512u + o;
        float y = sums[0][n].w;
        float up = sums[1][n].w;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
  }
}
