// embed_8eaa61b4
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] q4_0
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
struct Row_q4_0 {
  const device uint8_t* blocks;
};
struct Raw_q4_0 { uint q[2]; float scale; };
inline Raw_q4_0 raw_q4_0(Row_q4_0 row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 2u * 18u;
  const device uint8_t* q = block + 2u + piece % 2u * 8u;
  Raw_q4_0 raw;
  raw.scale = load_half(block);
  raw.q[0] = load_u32_2(q);
  raw.q[1] = load_u32_2(q + 4);
  return raw;
}
inline void codes_q4_0(Raw_q4_0 raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    c[i] = unsigned_bytes((raw.q[i] >> (4u * run)) & 0x0f0f0f0fu) - 8.0f;
  }
}
inline float2 scale_q4_0(Raw_q4_0 raw, uint run) { return float2(raw.scale, 0.0f); }
// A run's elements.
inline void values_q4_0(Raw_q4_0 raw, uint run, thread float4* c) {
  codes_q4_0(raw, run, c);
  const float2 scale = scale_q4_0(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
  }
}

// ---- kernel
[[kernel]] void embed_8eaa61b4(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_q4_0 row = Row_q4_0{table + (ulong)token_id * 144u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_q4_0 raw = raw_q4_0(row, piece);
    const uint column = piece / 2u * 32u + piece % 2u * 8u;
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 v[2];
      values_q4_0(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        target[column + run * 16u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
