// down_unpack_85157288
// small spec of a test
//
// Unpacks the weight's rows to bf16, for a matmul that takes one type.
// A thread takes 4 pieces, 256 apart; rows follow each other without gaps, so pieces are counted over all of them. The pieces of a
// simdgroup's lanes make a tile of neighbouring numbers. They pass through threadgroup memory, so that lanes that store at once
// store neighbouring 16 bytes.
// Grid: 8 threadgroups of 256 threads.
//   weight     [256, 512] q4_k
//   out        [256, 512] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
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

#ifndef MLXR_STORE_UINT4  // a host's compiler may need telling to store 16 bytes at once
#define MLXR_STORE_UINT4(p, v) *(device uint4*)(p) = (v)
#endif
// Where a chunk of a tile lies: 16 bytes in one of eight sets of banks, a different one for each of the eight chunks that
// are stored at once. These are every second chunk, or two of every four, or four and the four 8 (as halves, 16) further on.
inline uint bank_of(uint chunk) { return chunk ^ ((chunk >> 3) & 1u) * 7u ^ ((chunk >> 2) & 4u); }
// ---- kernel
[[kernel]] void down_unpack_85157288(
  const device uint8_t* weight [[buffer(0)]],
  device bfloat16_t* out [[buffer(1)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(uint4, tiles, 512);
  const uint group = threadgroup_position_in_grid.x;
  const uint place = thread_index_in_threadgroup;
  const uint lane = thread_index_in_simdgroup;
  threadgroup uint4* tile = tiles + simdgroup_index_in_threadgroup * 64u;
  {
    // Rows 0 to 255.
    const uint first = group * 4u;
    Raw_q4_k raw[4];
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const uint part = first + i;
      const Row_q4_k w = Row_q4_k{weight + (ulong)part * 2304u};
      raw[i] = raw_q4_k(w, place);
    }
    const uint column = lane / 4u * 64u + lane % 4u * 8u;
    const uint bank = bank_of(column / 8);
    const uint own = first * 512u + simdgroup_index_in_threadgroup * 64u + lane;
    device uint4* target = (device uint4*)out + own;
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      // All loads have been issued, and no lane reads the last tile any more.
      simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 v[2];
        values_q4_k(raw[i], run, v);
        tile[bank ^ bank_of(run * 4u + 0)] = pack_bf16_8(v[0], v[1]);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      MLXR_STORE_UINT4(target + i * 512u, tile[bank_of(lane)]);
      MLXR_STORE_UINT4(target + i * 512u + 32u, tile[bank_of(lane) + 32u]);
    }
  }
}
