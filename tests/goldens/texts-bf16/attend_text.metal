// attend_text_b7a3ea92
// small spec of a test
//
// Attention of whole texts within themselves: each query sees all keys of its text.
// One threadgroup serves 2 query heads on one KV head, of a tile of 16 query tokens: 32 rows, 4 a simdgroup. It walks the
// text 32 keys at a time, which come from the projection and no cache: a lane owns a key for the scores (so a row's softmax
// takes one simd_max) and a slice of the head for the values.
// Source: FlashAttention-2 (Dao 2023).
// Grid: (1 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 128] bf16: 2 query, 1 key, 1 value heads of 32
//   query_tiles  [tiles, 2] i32: text, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   query_start  [seqs + 1] i32: first token of each text
//   positions  [tokens] i32
//   out        [tokens, 64] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
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
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_text_b7a3ea92(
  const device bfloat16_t* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* query_start [[buffer(2)]],
  const device int32_t* positions [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
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
const uint text_start = (uint)query_start[sequence], text_end = (uint)query_start[sequence + 1];
  const uint num_tokens = min(16u, text_end - first_token);

  // Row r is query head first_head + r % 2 of token r / 2. Rows past the end stay zero and are not stored.
  MLXR_THREADGROUP(float, q, 1024);
  MLXR_THREADGROUP(float, tile, 1056);
  MLXR_THREADGROUP(float, weights, 1024);
  for (uint i = thread_index_in_threadgroup; i < 1024u; i += 256u) {
    const uint row = i / 32u, element = i % 32u, t = row / 2u;
    float rotated = 0.0f;
    if (t < num_tokens) {
      const device bfloat16_t* head = qkv + (ulong)(first_token + t) * 128u +
          (first_head + row % 2u) * 32u;
      rotated = rotate(head, element, rotation(element, positions[first_token + t])) * 0.255034864f;
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
  const uint begin = text_start, end = text_end;

  for (uint first_key = begin; first_key < end; first_key += 32u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 1024u; i += 256u) {
      const uint key = i / 32u, element = i % 32u;
      const uint at = min(first_key + key, end - 1);  // keys past the end repeat the last one; their weight is zero
      const device bfloat16_t* head = qkv + (ulong)at * 128u + (2u + kv_head) * 32u;
      tile[key * 33u + element] = rotate(head, element, rotation(element, positions[at]));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float scores[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] = 0.0f;
    }
    const uint own = lane;
    for (uint d = 0; d < 32u; d++) {
      const float key = tile[own * 33u + d];
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
        scores[r] += key * q[(first_row + r) * 32u + d];
      }
    }
    const uint key_token = first_key + own;
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      const bool seen = key_token < end;
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
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 1024u; i += 256u) {
      const uint key = i / 32u, element = i % 32u;
      const uint at = min(first_key + key, end - 1);
      tile[key * 33u + element] = (float)qkv[(ulong)at * 128u + (3u + kv_head) * 32u + element];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint key = 0; key < 32u; key++) {
#pragma unroll
      for (uint d = 0; d < 1u; d++) {
        const uint element = lane + 32u * d;
        const float value = tile[key * 33u + element];
#pragma unroll
        for (uint r = 0; r < 4u; r++) {
          values[r][d] += weights[(first_row + r) * 32u + key] * value;
        }
      }
    }
  }
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    const uint row = first_row + r, t = row / 2u;
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
}
