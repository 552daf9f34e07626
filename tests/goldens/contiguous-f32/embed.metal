// embed_5a1fa75e
// small spec of a test
//
// Rows of the embedding table.
// Grid: one threadgroup of 32 threads a token; a thread takes 4 elements at a time.
//   token_ids  [tokens] i32
//   table      [61, 48] f32
//   out        [tokens, 48] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_8(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
  v[1] = *(const device float4*)(p + 4);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }

// ---- kernel
[[kernel]] void embed_5a1fa75e(
  const device int32_t* token_ids [[buffer(0)]],
  const device float* table [[buffer(1)]],
  device float* out [[buffer(2)]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint token = threadgroup_position_in_grid.x;
  const uint token_id = (uint)token_ids[token];
  const Row_f32 row = Row_f32{table + (ulong)token_id * 48u};
  device float* target = out + (ulong)token * 48u;
  for (uint piece = thread_index_in_threadgroup; piece < 12u; piece += 32u) {
    const Raw_f32 raw = raw_f32(row, piece);
    const uint column = piece * 4u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      codes_f32(raw, run, v);
#pragma unroll
      for (uint i = 0; i < 4u; i++) {
        target[column + run * 4u + i] = (float)(v[i / 4][i % 4]);
      }
    }
  }
}
