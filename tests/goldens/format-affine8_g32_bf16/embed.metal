// embed_efe9a396
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] affine8_g32_bf16
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
struct Row_affine8_g32_bf16 {
  const device uint8_t* weight;
  const device uint8_t* scales;
  const device uint8_t* biases;
};
struct Raw_affine8_g32_bf16 { uint q[4]; float2 scale; };
inline Raw_affine8_g32_bf16 raw_affine8_g32_bf16(Row_affine8_g32_bf16 row, uint piece) {
  const device uint8_t* q = row.weight + piece * 16u;
  const uint group = piece / 2u;
  Raw_affine8_g32_bf16 raw;
  raw.scale.x = (float)((const device bfloat16_t*)row.scales)[group];
  raw.scale.y = (float)((const device bfloat16_t*)row.biases)[group];
  const uint4 words = load_u32x4(q);
  raw.q[0] = words[0];
  raw.q[1] = words[1];
  raw.q[2] = words[2];
  raw.q[3] = words[3];
  return raw;
}
inline void codes_affine8_g32_bf16(Raw_affine8_g32_bf16 raw, uint run, thread float4* c) {
  c[0] = unsigned_bytes(raw.q[0]);
  c[1] = unsigned_bytes(raw.q[1]);
  c[2] = unsigned_bytes(raw.q[2]);
  c[3] = unsigned_bytes(raw.q[3]);
}
inline float2 scale_affine8_g32_bf16(Raw_affine8_g32_bf16 raw, uint run) { return raw.scale; }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_affine8_g32_bf16(Raw_affine8_g32_bf16 raw, uint run, thread float4* c) {
  codes_affine8_g32_bf16(raw, run, c);
  const float2 scale = scale_affine8_g32_bf16(raw, run);
#pragma unroll
  for (uint i = 0; i < 4u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

// ---- kernel
[[kernel]] void embed_efe9a396(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_affine8_g32_bf16 row = Row_affine8_g32_bf16{table + (ulong)token_id * 256u, table + 15616ul + (ulong)token_id * 16u, table + 16592ul + (ulong)token_id * 16u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_affine8_g32_bf16 raw = raw_affine8_g32_bf16(row, piece);
    const uint column = piece * 16u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[4];
      values_affine8_g32_bf16(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 16u; i++) {
        target[column + run * 16u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
