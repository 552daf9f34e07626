// head_product_gemm_mma_a5d29859
// small spec of a test
//
// Projection of many rows by matrix instructions: out = x @ weight.T.
// A threadgroup makes 64 outputs of 64 rows, 128 columns at a time: it puts its rows of x and its 64 rows of the weight, as
// bf16 numbers, into threadgroup memory, and a simdgroup multiplies 32 rows of x by 32 rows of the weight. A
// lane reads 16 bytes of rows g, g + 8 ... of both, from column 8 t on. That permutes the columns of both alike, which
// changes no product.
// Each head has a matrix of its own.
// Grid: (1, ceil(tokens / 64) * 4 heads) threadgroups of 4 simdgroups.
//   x          [tokens, 1024] bf16
//   weight     [34816] u8
//     rows 0 to 127: [128, 256] q8_0 at byte 0
//   out        [tokens, 4, 32] bf16
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

inline Raw_q8_0 aligned_q8_0(Row_q8_0 row, uint piece) {
  const device uint8_t* blocks = row.blocks + piece / 8u * 136u;
  const uint first = piece % 8u / 2u * 34u, at = first + 2u + piece % 2u * 16u;
  const uint2 a = load_u32x2(blocks + at / 8u * 8u), b = load_u32x2(blocks + at / 8u * 8u + 8u);
  // The last piece ends with its second vector.
  const uint2 c = at % 8u == 0u ? uint2(0) : load_u32x2(blocks + at / 8u * 8u + 16u);
  const bool skips = at % 8u >= 4u;
  const uint words[5] = {skips ? a.y : a.x, skips ? b.x : a.y, skips ? b.y : b.x, skips ? c.x : b.y, skips ? c.y : c.x};
  Raw_q8_0 raw;
  raw.scale = load_half(blocks + first);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.q[i] = at % 4u == 0u ? words[i] : words[i] >> 16 | words[i + 1] << 16;
  }
  return raw;
}
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
[[kernel]] void head_product_gemm_mma_a5d29859(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint thread_id = thread_index_in_threadgroup;
  const uint first = threadgroup_position_in_grid.x * 64u;
  const uint end = 32u;

  const uint head = threadgroup_position_in_grid.y % 4u, head_row = head * 32u;
  const uint first_row = threadgroup_position_in_grid.y / 4u * 64u;
  const uint count = dims[0];

  // 128 columns of each row: 4 times 32, rows of 64 bytes. Neighbouring rows of every second 32 change places, so
  // that lanes that store the same row use different banks.
  MLXR_THREADGROUP(uint4, tile_x, 1024);
  MLXR_THREADGROUP(uint4, tile_w, 1024);
  // A thread brings 16 bytes of 8 rows of x; rows past the end repeat the last one and are not stored.
  uint of_x[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    const uint x_row = min(first_row + thread_id / 16u + 8u * i, count - 1);
    of_x[i] = x_row * 128u + head * 32u + thread_id % 16u;
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
  Row_q8_0 w0[4];
  Raw_q8_0 raw0[4];
  const uint piece0 = thread_id % 8u;
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    const uint w_row = thread_id / 8u + 16u * i;
    const uint w_out = head_row + min(first + w_row, end - 1);
    w0[i] = Row_q8_0{weight + (ulong)w_out * 272u};
  }
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    next_x[i] = ((const device uint4*)x)[of_x[i] + 0u * 4u];
  }
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    raw0[i] = aligned_q8_0(w0[i], 0u * 2u + piece0);
  }

  for (uint step = 0; step < 8u; step += 4u) {
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      tile_x[x_place + 32u * i] = next_x[i];
    }
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const uint w_row = thread_id / 8u + 16u * i;
#pragma unroll
      for (uint run = 0; run < 1u; run++) {
        float4 u[4];
        values_q8_0(raw0[i], run, u);
        const uint column = piece0 * 16u + run * 16u;
        threadgroup uint4* to = tile_w + column / 32u * 256u + (w_row ^ column / 32u % 2u) * 4u;
        to[column % 32u / 8u] = pack_bf16_8(u[0], u[1]);
        to[column % 32u / 8u + 1u] = pack_bf16_8(u[2], u[3]);
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
        raw0[i] = aligned_q8_0(w0[i], (step + 4u) * 2u + piece0);
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
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[0][n].x;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[0][n].y;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[0][n].z;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[0][n].w;
        out[place] = (bfloat16_t)y;
      }
    }
  }
#pragma unroll
  for (uint n = 0; n < 4; n++) {
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group + 32;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[1][n].x;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group + 32;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[1][n].y;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group + 40;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[1][n].z;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group + 40;
      if (row < count && o < end) {
        const ulong place = ((ulong)row * 4u + head) * 32u + o;
        float y = sums[1][n].w;
        out[place] = (bfloat16_t)y;
      }
    }
  }
}
