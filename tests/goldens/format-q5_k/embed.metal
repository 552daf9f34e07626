// embed_acc562ff
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 16 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 256] q5_k
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
struct Row_q5_k {
  const device uint8_t* blocks;
};
struct Raw_q5_k { uint2 q; uint2 high; PairScales scales; };
inline Raw_q5_k raw_q5_k(Row_q5_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 176u;
  const uint pair = piece % 16u / 4u;
  const uint2 high = load_u32x2(block + 16u + piece % 4u * 8u);
  Raw_q5_k raw;
  raw.q = load_u32x2(block + 48u + piece % 16u * 8u);
  raw.high = uint2(high.x >> (2u * pair), high.y >> (2u * pair));
  raw.scales = pair_scales(load_u32x4(block), pair);
  return raw;
}
inline void codes_q5_k(Raw_q5_k raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint low = (raw.q[i] >> (4u * run)) & 0x0f0f0f0fu;
    c[i] = unsigned_bytes(low | ((raw.high[i] >> run) & 0x01010101u) << 4);
  }
}
inline float2 scale_q5_k(Raw_q5_k raw, uint run) { return scale_of(raw.scales, run); }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q5_k(Raw_q5_k raw, uint run, thread float4* c) {
  codes_q5_k(raw, run, c);
  const float2 scale = scale_q5_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}

// ---- kernel
[[kernel]] void embed_acc562ff(
  const device int32_t* token_ids [[buffer(0)]],
  const device uint8_t* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_q5_k row = Row_q5_k{table + (ulong)token_id * 176u};
  device float* target = out + (ulong)token * 256u;
  for (uint piece = thread_index_in_threadgroup; piece < 16u; piece += 32u) {
    const Raw_q5_k raw = raw_q5_k(row, piece);
    const uint column = piece / 4u * 64u + piece % 4u * 8u;
#pragma unroll
    for (uint run = 0; run < 2u; run++) {
      float4 v[2];
      values_q5_k(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        target[column + run * 32u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
