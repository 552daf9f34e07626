// embed_4c356e1f
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] q3_k
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
struct Row_q3_k {
  const device uint8_t* blocks;
};
struct Raw_q3_k { uint q; uint high; float scale; float scales[4]; };
inline Raw_q3_k raw_q3_k(Row_q3_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 110u;
  const uint half_block = piece % 16u / 8u;
  const uint at = piece % 8u * 4u;
  Raw_q3_k raw;
  raw.high = load_u32_2(block + at) >> (4u * half_block);
  raw.q = load_u32_2(block + 32u + half_block * 32u + at);
  raw.scale = load_half(block + 108);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    const uint index = half_block * 8u + at / 16u + 2u * i;
    const uint low = ((uint)block[96u + index % 8u] >> (4u * half_block)) & 15u;
    const uint high = ((uint)block[104u + index % 4u] >> (2u * (index / 4u))) & 3u;
    raw.scales[i] = (float)(low | high << 4) - 32.0f;
  }
  return raw;
}
inline void codes_q3_k(Raw_q3_k raw, uint run, thread float4* c) {
  const uint low = (raw.q >> (2u * run)) & 0x03030303u;
  c[0] = unsigned_bytes(low | ((raw.high >> run) & 0x01010101u) << 2) - 4.0f;
}
inline float2 scale_q3_k(Raw_q3_k raw, uint run) {
  const float a = run & 1u ? raw.scales[1] : raw.scales[0];
  const float b = run & 1u ? raw.scales[3] : raw.scales[2];
  return float2(raw.scale * (run & 2u ? b : a), 0.0f);
}
// A run's elements.
inline void values_q3_k(Raw_q3_k raw, uint run, thread float4* c) {
  codes_q3_k(raw, run, c);
  const float2 scale = scale_q3_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    c[i] *= scale.x;
  }
}

// ---- kernel
[[kernel]] void embed_4c356e1f(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_q3_k row = Row_q3_k{table + (ulong)token_id * 110u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_q3_k raw = raw_q3_k(row, piece);
    const uint column = piece / 8u * 128u + piece % 8u * 4u;
#pragma unroll
    for (uint run = 0; run < 4u; run++) {
      float4 v[1];
      values_q3_k(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        target[column + run * 32u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
