// embed_14461570
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] mxfp4_mlx
//   out        [tokens, 256] f32
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
struct Row_mxfp4_mlx {
  const device uint8_t* weight;
  const device uint8_t* scales;
};
struct Raw_mxfp4_mlx { uint2 q; float scale; };
inline Raw_mxfp4_mlx raw_mxfp4_mlx(Row_mxfp4_mlx row, uint piece) {
  return Raw_mxfp4_mlx{load_u32x2(row.weight + piece * 8u), half_scale_e8m0((uint)row.scales[piece / 2u])};
}
inline void codes_mxfp4_mlx(Raw_mxfp4_mlx raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const float4 even = doubled_fp4(raw.q[i]);
    const float4 odd = doubled_fp4(raw.q[i] >> 4);
    c[2u * i] = float4(even.x, odd.x, even.y, odd.y);
    c[2u * i + 1u] = float4(even.z, odd.z, even.w, odd.w);
  }
}
inline float2 scale_mxfp4_mlx(Raw_mxfp4_mlx raw, uint run) { return float2(raw.scale, 0.0f); }
// A run's elements.
inline void values_mxfp4_mlx(Raw_mxfp4_mlx raw, uint run, thread float4* c) {
  codes_mxfp4_mlx(raw, run, c);
  const float2 scale = scale_mxfp4_mlx(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
  }
}

// ---- kernel
[[kernel]] void embed_14461570(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_mxfp4_mlx row = Row_mxfp4_mlx{table + (ulong)token_id * 128u, table + 7808ul + (ulong)token_id * 8u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_mxfp4_mlx raw = raw_mxfp4_mlx(row, piece);
    const uint column = piece * 16u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      values_mxfp4_mlx(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 16u; i++) {
        target[column + run * 16u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
