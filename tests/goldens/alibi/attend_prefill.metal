// attend_prefill_739c3f8e
// small spec of a test
//
// Prefill: attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 3 query heads on one KV head, of a tile of 10 query tokens: 32 rows, 4 a simdgroup. It walks the
// context 32 keys at a time through threadgroup memory: a lane owns a key for the scores (so a row's softmax takes one
// simd_max) and a slice of the head for the values.
// Source: FlashAttention-2 (Dao 2023), with the K and V tiles gathered through the block table.
// Grid: (2 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 400] f32: 6 query, 2 key, 2 value heads of 40
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [30, 1, 4, 2, 40] f32
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 240] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 80u;
}
constant float slopes[6] = {
  0.360673755f, 0.0901684389f, 0.0225421097f, 0.00563552743f, 0.721347511f, 0.180336878f,
};
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_739c3f8e(
  const device float* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* block_tables [[buffer(4)]],
  const device uint32_t* layer [[buffer(5)]],
  const device float* k_arena [[buffer(6)]],
  const device float* v_arena [[buffer(7)]],
  const device uint32_t* token [[buffer(8)]],
  device float* out [[buffer(9)]],
  device uint32_t* token_out [[buffer(10)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint kv_head = threadgroup_position_in_grid.x;
  const uint first_head = kv_head * 3u;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 240u;
    device float* row = out + (ulong)first_token * 240u;
    for (uint i = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup; i < count; i += 512u) {
      row[i] = (float)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(10u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];

  // Row r is query head first_head + r % 3 of token r / 3. Rows past the end stay zero and are not stored.
  MLXR_THREADGROUP(float4, q, 320);
  MLXR_THREADGROUP(uint4, k_tile, 352);
  MLXR_THREADGROUP(uint4, v_tile, 352);
  MLXR_THREADGROUP(float, weights, 1024);
  for (uint i = thread_index_in_threadgroup; i < 320u; i += 256u) {
    const uint row = i / 10u;
    const uint element = i % 10u * 4u;
    const uint t = row / 3u;
    float4 rotated = float4(0.0f);
    if (t < num_tokens) {
      const device float* head = qkv + (ulong)(first_token + t) * 400u +
          (first_head + row % 3u) * 40u;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[j] = (float)head[element + j] * 0.22811012f;
      }
    }
    q[i] = rotated;
  }

  float maximum[4];
  float total[4];
  float values[4][2];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    maximum[r] = LOWEST;
    total[r] = 0.0f;
#pragma unroll
    for (uint d = 0; d < 2u; d++) {
      values[r][d] = 0.0f;
    }
  }
  const uint first_row = simd_gid * 4u;
  float slope[4];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    slope[r] = slopes[min(first_head + (first_row + r) % 3u, 5u)];
  }
  const uint end = first_position + num_tokens;
  const uint begin = 0u;

  for (uint first_key = begin; first_key < end; first_key += 32u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 320u; i += 256u) {
      const uint key = i / 10u;
      const uint chunk = i % 10u;
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + key, end - 1);
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 40u;
      k_tile[key * 11u + chunk] = ((const device uint4*)(k_arena + row))[chunk];
      v_tile[key * 11u + chunk] = ((const device uint4*)(v_arena + row))[chunk];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float scores[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] = 0.0f;
    }
    const uint own = lane;
    for (uint chunk = 0; chunk < 10u; chunk++) {
      float4 key[1];
      unpack_f32(k_tile[own * 11u + chunk], key);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          scores[r] += sum4(key[j] * q[(first_row + r) * 10u + chunk * 1u + j]);
        }
      }
    }
    const uint key_position = first_key + own;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint t = (first_row + r) / 3u;
      const uint query_position = first_position + min(t, num_tokens - 1);
      scores[r] += slope[r] * (float)((int)(key_position) - (int)(query_position));
      const bool seen = key_position <= query_position;
      const float largest = max(maximum[r], simd_max(seen ? scores[r] : LOWEST));
      const float p = seen ? exp2(scores[r] - largest) : 0.0f;
      const float keep = exp2(maximum[r] - largest);
      maximum[r] = largest;
      total[r] = total[r] * keep + p;
      weights[(first_row + r) * 32u + lane] = p;
#pragma unroll
      for (uint d = 0; d < 2u; d++) {
        values[r][d] *= keep;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* v = (threadgroup float*)v_tile;
    for (uint key = 0; key < 32u; key++) {
#pragma unroll
      for (uint d = 0; d < 2u; d++) {
        const uint element = lane + 32u * d;
        const float value = element >= 40u ? 0.0f : (float)v[key * 44u + element];
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
    const uint t = row / 3u;
    const float sum = simd_sum(total[r]);
    if (row < 30u && t < num_tokens) {
      device float* target = out + (ulong)(first_token + t) * 240u +
          (first_head + row % 3u) * 40u;
#pragma unroll
      for (uint d = 0; d < 2u; d++) {
        const uint element = lane + 32u * d;
        if (element < 40u) {
          target[element] = (float)(values[r][d] / sum);
        }
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
