// attend_prefill_9e5ccdf5
// small spec of a test
//
// Prefill: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 2 query heads on one KV head, of a tile of 16 query tokens: 32 rows, 4 a simdgroup. It walks the
// context 32 keys at a time through threadgroup memory: a lane owns a key for the scores (so a row's softmax takes one
// simd_max) and a slice of the head for the values.
// Source: FlashAttention-2 (Dao 2023), with the K and V tiles gathered through the block table.
// Grid: (1 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 128] bf16: 2 query, 1 key, 1 value heads of 32
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena, v_arena  [6, 1, 16, 1, 32] bf16
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 64] bf16
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
constant float rope_frequencies[16] = {
  1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341325f,
  0.0316227749f, 0.0177827943f, 0.00999999978f, 0.00562341325f, 0.00316227763f, 0.00177827943f,
  0.00100000005f, 0.000562341302f, 0.000316227757f, 0.00017782794f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 16u;
  const uint pair = first ? element : element - 16u;
  const uint partner = first ? element + 16u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 32u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_9e5ccdf5(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* block_tables [[buffer(4)]],
  const device uint32_t* layer [[buffer(5)]],
  const device bfloat16_t* k_arena [[buffer(6)]],
  const device bfloat16_t* v_arena [[buffer(7)]],
  const device uint32_t* token [[buffer(8)]],
  device bfloat16_t* out [[buffer(9)]],
  device uint32_t* token_out [[buffer(10)]],
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
    device bfloat16_t* row = out + (ulong)first_token * 64u;
    for (uint i = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup; i < count; i += 256u) {
      row[i] = (bfloat16_t)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(16u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];

  // Row r is query head first_head + r % 2 of token r / 2. Rows past the end stay zero and are not stored.
  MLXR_THREADGROUP(float4, q, 256);
  MLXR_THREADGROUP(uint4, k_tile, 160);
  MLXR_THREADGROUP(uint4, v_tile, 160);
  MLXR_THREADGROUP(float, weights, 1024);
  for (uint i = thread_index_in_threadgroup; i < 256u; i += 256u) {
    const uint row = i / 8u;
    const uint element = i % 8u * 4u;
    const uint t = row / 2u;
    float4 rotated = float4(0.0f);
    if (t < num_tokens) {
      const device bfloat16_t* head = qkv + (ulong)(first_token + t) * 128u +
          (first_head + row % 2u) * 32u;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[j] = rotate(head, element + j, rotation(element + j, (int)(first_position + t))) * 0.255034864f;
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
    for (uint i = thread_index_in_threadgroup; i < 128u; i += 256u) {
      const uint key = i / 4u;
      const uint chunk = i % 4u;
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + key, end - 1);
      const ulong row = arena_row((uint)table[(at) / 16u], layer[0], at % 16u) + kv_head * 32u;
      k_tile[key * 5u + chunk] = ((const device uint4*)(k_arena + row))[chunk];
      v_tile[key * 5u + chunk] = ((const device uint4*)(v_arena + row))[chunk];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float scores[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] = 0.0f;
    }
    const uint own = lane;
    for (uint chunk = 0; chunk < 4u; chunk++) {
      float4 key[2];
      unpack_bf16(k_tile[own * 5u + chunk], key);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          scores[r] += sum4(key[j] * q[(first_row + r) * 8u + chunk * 2u + j]);
        }
      }
    }
    const uint key_position = first_key + own;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const uint t = (first_row + r) / 2u;
      const uint query_position = first_position + min(t, num_tokens - 1);
      const bool seen = key_position <= query_position;
      const float largest = max(maximum[r], simd_max(seen ? scores[r] : LOWEST));
      const float p = seen ? exp2(scores[r] - largest) : 0.0f;
      const float keep = exp2(maximum[r] - largest);
      maximum[r] = largest;
      total[r] = total[r] * keep + p;
      weights[(first_row + r) * 32u + lane] = p;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        values[r][d] *= keep;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup bfloat16_t* v = (threadgroup bfloat16_t*)v_tile;
    for (uint key = 0; key < 32u; key++) {
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        const uint element = lane + 32u * d;
        const float value = (float)v[key * 40u + element];
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
      device bfloat16_t* target = out + (ulong)(first_token + t) * 64u +
          (first_head + row % 2u) * 32u;
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        const uint element = lane + 32u * d;
        target[element] = (bfloat16_t)(values[r][d] / sum);
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
