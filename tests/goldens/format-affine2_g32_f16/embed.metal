// embed_ade5901b
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] affine2_g32_f16
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
struct Row_affine2_g32_f16 {
  const device uint8_t* weight;
  const device uint8_t* scales;
  const device uint8_t* biases;
};
struct Raw_affine2_g32_f16 { uint q[1]; float2 scale; };
inline Raw_affine2_g32_f16 raw_affine2_g32_f16(Row_affine2_g32_f16 row, uint piece) {
  const device uint8_t* q = row.weight + piece * 4u;
  const uint group = piece / 2u;
  Raw_affine2_g32_f16 raw;
  raw.scale.x = (float)((const device float16_t*)row.scales)[group];
  raw.scale.y = (float)((const device float16_t*)row.biases)[group];
  raw.q[0] = load_u32(q + 0);
  return raw;
}
inline void codes_affine2_g32_f16(Raw_affine2_g32_f16 raw, uint run, thread float4* c) {
  c[0] = float4(
      (float)(raw.q[0] & 3u),
      (float)((raw.q[0] >> 2) & 3u),
      (float)((raw.q[0] >> 4) & 3u),
      (float)((raw.q[0] >> 6) & 3u));
  c[1] = float4(
      (float)((raw.q[0] >> 8) & 3u),
      (float)((raw.q[0] >> 10) & 3u),
      (float)((raw.q[0] >> 12) & 3u),
      (float)((raw.q[0] >> 14) & 3u));
  c[2] = float4(
      (float)((raw.q[0] >> 16) & 3u),
      (float)((raw.q[0] >> 18) & 3u),
      (float)((raw.q[0] >> 20) & 3u),
      (float)((raw.q[0] >> 22) & 3u));
  c[3] = float4(
      (float)((raw.q[0] >> 24) & 3u),
      (float)((raw.q[0] >> 26) & 3u),
      (float)((raw.q[0] >> 28) & 3u),
      (float)((raw.q[0] >> 30) & 3u));
}
inline float2 scale_affine2_g32_f16(Raw_affine2_g32_f16 raw, uint run) { return raw.scale; }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_affine2_g32_f16(Raw_affine2_g32_f16 raw, uint run, thread float4* c) {
  codes_affine2_g32_f16(raw, run, c);
  const float2 scale = scale_affine2_g32_f16(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

// ---- kernel
[[kernel]] void embed_ade5901b(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_affine2_g32_f16 row = Row_affine2_g32_f16{table + (ulong)token_id * 64u, table + 3904ul + (ulong)token_id * 16u, table + 4880ul + (ulong)token_id * 16u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_affine2_g32_f16 raw = raw_affine2_g32_f16(row, piece);
    const uint column = piece * 16u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      values_affine2_g32_f16(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 16u; i++) {
        target[column + run * 16u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
