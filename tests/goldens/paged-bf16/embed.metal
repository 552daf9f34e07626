// embed_0c504559
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 8 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 48] bf16
//   out        [tokens, 48] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }

// ---- kernel
[[kernel]] void embed_0c504559(
  const device int32_t* token_ids [[buffer(0)]],
  const device bfloat16_t* table [[buffer(1)]],
  device bfloat16_t* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_bf16 row = Row_bf16{table + (ulong)token_id * 48u};
  device bfloat16_t* target = out + (ulong)token * 48u;
  for (uint piece = thread_index_in_threadgroup; piece < 6u; piece += 32u) {
    const Raw_bf16 raw = raw_bf16(row, piece);
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      codes_bf16(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        target[column + run * 8u + i] = (bfloat16_t)(v[i / 4][i % 4]);
      }
    }
  }
}
