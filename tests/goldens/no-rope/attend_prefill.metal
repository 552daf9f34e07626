// attend_prefill_fe41e1b2
// small spec of a test
//
// Prefill: attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 2 query heads on one KV head, of a tile of 16 query tokens: 32 rows, 4 a simdgroup. It walks the
// context 32 keys at a time through threadgroup memory: a lane owns a key for the scores (so a row's softmax takes one
// simd_max) and a slice of the head for the values.
// Source: FlashAttention-2 (Dao 2023), with the K and V tiles gathered through the block table.
// Grid: (1 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 128] f32: 2 query, 1 key, 1 value heads of 32
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   k_arena, v_arena  [3, 1, 16, 1, 36] q8
//     a row: 32 int8 numbers and their f32 scale; number * scale is the element
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 64] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_q8(uint u, thread float4* v) { v[0] = float4(as_type<char4>(u)); }

inline void load_q8_4(const device int8_t* p, thread float4* v) { unpack_q8(*(const device uint*)p, v); }

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 36u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_fe41e1b2(
  const device float* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device uint32_t* layer [[buffer(4)]],
  const device int8_t* k_arena [[buffer(5)]],
  const device int8_t* v_arena [[buffer(6)]],
  const device uint32_t* token [[buffer(7)]],
  device float* out [[buffer(8)]],
  device uint32_t* token_out [[buffer(9)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 2u;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 64u;
    device float* row = out + (ulong)first_token * 64u;
    for (uint i = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup; i < count; i += 256u) {
      row[i] = (float)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const uint num_tokens = min(16u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];

  // Row r is query head first_head + r % 2 of token r / 2. Rows past the end stay zero and are not stored.
  MLXR_THREADGROUP(float4, q, 256);
  MLXR_THREADGROUP(uint, k_tile, 288);
  MLXR_THREADGROUP(uint, v_tile, 288);
  MLXR_THREADGROUP(float, weights, 1024);
  for (uint i = thread_index_in_threadgroup; i < 256u; i += 256u) {
    const uint row = i / 8u;
    const uint element = i % 8u * 4u;
    const uint t = row / 2u;
    float4 rotated = float4(0.0f);
    if (t < num_tokens) {
      const device float* head = qkv + (ulong)(first_token + t) * 128u +
          (first_head + row % 2u) * 32u;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[j] = (float)head[element + j] * 0.255034864f;
      }
    }
    q[i] = rotated;
  }

  float maximum[4];
  float total[4];
  float values[4][1];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    maximum[r] = LOWEST;
    total[r] = 0.0f;
#pragma unroll
    for (uint d = 0; d < 1u; d++) {
      values[r][d] = 0.0f;
    }
  }
  const uint first_row = simd_gid * 4u;
  const uint end = first_position + num_tokens;
  const uint begin = 0u;

  for (uint first_key = begin; first_key < end; first_key += 32u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 288u; i += 256u) {
      const uint key = i / 9u;
      const uint chunk = i % 9u;
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + key, end - 1);
      const ulong row = arena_row((at) / 16u, layer[0], at % 16u) + kv_head * 36u;
      k_tile[key * 9u + chunk] = ((const device uint*)(k_arena + row))[chunk];
      v_tile[key * 9u + chunk] = ((const device uint*)(v_arena + row))[chunk];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float scores[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] = 0.0f;
    }
    const uint own = lane;
    for (uint chunk = 0; chunk < 8u; chunk++) {
      float4 key[1];
      unpack_q8(k_tile[own * 9u + chunk], key);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          scores[r] += sum4(key[j] * q[(first_row + r) * 8u + chunk * 1u + j]);
        }
      }
    }
    const uint key_position = first_key + own;
    const float k_scale = as_type<float>(k_tile[own * 9u + 8u]);
    const float v_scale = as_type<float>(v_tile[own * 9u + 8u]);
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] *= k_scale;
      const uint t = (first_row + r) / 2u;
      const uint query_position = first_position + min(t, num_tokens - 1);
      const bool seen = key_position <= query_position;
      const float largest = max(maximum[r], simd_max(seen ? scores[r] : LOWEST));
      const float p = seen ? exp2(scores[r] - largest) : 0.0f;
      const float keep = exp2(maximum[r] - largest);
      maximum[r] = largest;
      total[r] = total[r] * keep + p;
      weights[(first_row + r) * 32u + lane] = seen ? p * v_scale : 0.0f;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        values[r][d] *= keep;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup int8_t* v = (threadgroup int8_t*)v_tile;
    for (uint key = 0; key < 32u; key++) {
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        const uint element = lane + 32u * d;
        const float value = (float)v[key * 36u + element];
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
          values[r][d] += weights[(first_row + r) * 32u + key] * value;
        }
      }
    }
  }
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first_row + r;
    const uint t = row / 2u;
    const float sum = simd_sum(total[r]);
    if (row < 32u && t < num_tokens) {
      device float* target = out + (ulong)(first_token + t) * 64u +
          (first_head + row % 2u) * 32u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        const uint element = lane + 32u * d;
        target[element] = (float)(values[r][d] / sum);
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
