// experts_gemm_mma_7969df29
// small spec of a test
//
// Projection of many rows by matrix instructions: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A threadgroup makes 32 outputs of 64 rows, 128 columns at a time: it puts its rows of x and its 64 rows of the weight, as
// bf16 numbers, into threadgroup memory, and a simdgroup multiplies 32 rows of x by 32 rows of the weight. A
// lane reads 16 bytes of rows g, g + 8 ... of both, from column 8 t on. That permutes the columns of both alike, which
// changes no product.
// The rows are the choices of tokens, those of an expert one after the other; a threadgroup has rows of one expert.
// Grid: (8, tiles) threadgroups of 4 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [1474560] u8
//     rows 0 to 10239: [10240, 256] q4_k at byte 0
//   order      [tokens * 3] i32: choices by expert
//   tiles      [tiles, 3] i32: expert, its first row in the order, and the row after its last
//   out        [tokens * 3, 256] bf16
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
[[kernel]] void experts_gemm_mma_7969df29(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* order [[buffer(2)]],
  const device int32_t* tiles [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint thread_id = thread_index_in_threadgroup;
  const uint first = threadgroup_position_in_grid.x * 32u;
  const uint end = 256u;

  const device int* of_tile = tiles + threadgroup_position_in_grid.y * 3u;
  const uint first_row = (uint)of_tile[1];
  const uint count = (uint)of_tile[2];
  if (first_row >= count) {
    return;
  }
  const uint expert_row = (uint)of_tile[0] * 256u;
  // 128 columns of each row: 4 times 32, rows of 64 bytes. Neighbouring rows of every second 32 change places, so
  // that lanes that store the same row use different banks.
  MLXR_THREADGROUP(uint4, tile_x, 1024);
  MLXR_THREADGROUP(uint4, tile_w, 1024);
  // A thread brings 16 bytes of 8 rows of x; rows past the end repeat the last one and are not stored.
  uint of_x[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    const uint x_row = min(first_row + thread_id / 16u + 8u * i, count - 1);
    of_x[i] = (uint)order[x_row] / 3u * 32u + thread_id % 16u;
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
  Row_q4_k w0[4];
  Raw_q4_k raw0[4];
  const uint piece0 = thread_id % 8u;
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    const uint w_row = thread_id / 8u + 16u * i;
    const uint w_out = expert_row + min(first + w_row % 32u, end - 1);
    w0[i] = w_row < 32u ? Row_q4_k{weight + (ulong)w_out * 144u} : Row_q4_k{weight + (ulong)(w_out + 5120u) * 144u};
  }
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    next_x[i] = ((const device uint4*)x)[of_x[i] + 0u * 4u];
  }
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    raw0[i] = raw_q4_k(w0[i], 0u * 2u + piece0);
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
      for (uint run = 0; run < 2u; run++) {
        float4 u[2];
        values_q4_k(raw0[i], run, u);
        const uint column = piece0 / 4u * 64u + piece0 % 4u * 8u + run * 32u;
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
        raw0[i] = raw_q4_k(w0[i], (step + 4u) * 2u + piece0);
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
        const uint choice = (uint)order[row];
        const ulong place = (ulong)choice * 256u + o;
        float y = sums[0][n].x;
        float up = sums[1][n].x;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group;
      if (row < count && o < end) {
        const uint choice = (uint)order[row];
        const ulong place = (ulong)choice * 256u + o;
        float y = sums[0][n].y;
        float up = sums[1][n].y;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const uint choice = (uint)order[row];
        const ulong place = (ulong)choice * 256u + o;
        float y = sums[0][n].z;
        float up = sums[1][n].z;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
    {
      const uint row = first_row + x_first + n * 8 + quad * 2 + 1, o = first + w_first + group + 8;
      if (row < count && o < end) {
        const uint choice = (uint)order[row];
        const ulong place = (ulong)choice * 256u + o;
        float y = sums[0][n].w;
        float up = sums[1][n].w;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
  }
}
