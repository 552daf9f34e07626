// attend_prefill_4287563d
// small spec of a test
//
// Prefill: RoPE of the queries and attention over the arena, for chunks that may see earlier context.
// One threadgroup serves 2 query heads on one KV head, of a tile of 16 query tokens: 32 rows, 4 a simdgroup. It walks the
// context 32 keys at a time through threadgroup memory: a lane owns a key for the scores (so a row's softmax takes one
// simd_max) and a slice of the head for the values.
// Source: FlashAttention-2 (Dao 2023), with the K and V tiles gathered through the block table.
// Grid: (1 KV heads, tiles) threadgroups of 8 simdgroups.
//   qkv        [tokens, 384] f32: 2 query, 1 key heads of 96, 1 value heads of 96
//   query_tiles  [tiles, 2] i32: sequence, first token; or -1 - n, first of n padding tokens, whose rows become 0
//   positions  [tokens] i32
//   query_start  [seqs + 1] i32: first token of each sequence
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   k_arena    [30, 1, 4, 1, 104] q4_keys
//   v_arena    [30, 1, 4, 1, 80] q4
//     rows: groups of 32 numbers, int8 of K and 6 bits of V, then the groups' bf16 scales; number * scale, of V 4 * number *
//     scale, is the element of a group that was multiplied by the Hadamard matrix of 32 and 1/8
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [tokens, 192] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[48] = {
  1.0f, 0.825404167f, 0.681292057f, 0.562341332f, 0.464158893f, 0.383118689f,
  0.316227764f, 0.261015713f, 0.215443462f, 0.177827939f, 0.146779925f, 0.121152766f,
  0.100000001f, 0.0825404152f, 0.0681292042f, 0.0562341325f, 0.0464158878f, 0.0383118689f,
  0.0316227749f, 0.0261015724f, 0.0215443466f, 0.0177827943f, 0.014677993f, 0.0121152764f,
  0.00999999978f, 0.0082540419f, 0.00681292079f, 0.00562341325f, 0.00464158878f, 0.0038311868f,
  0.00316227763f, 0.00261015724f, 0.0021544348f, 0.00177827943f, 0.0014677993f, 0.00121152762f,
  0.00100000005f, 0.00082540419f, 0.000681292091f, 0.000562341302f, 0.000464158889f, 0.000383118691f,
  0.000316227757f, 0.000261015724f, 0.000215443462f, 0.00017782794f, 0.00014677993f, 0.000121152763f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 48u;
  const uint pair = first ? element : element - 48u;
  const uint partner = first ? element + 48u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device float* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline void q4_mix_group(threadgroup float* x) {
  float v[32];
#pragma unroll
  for (uint i = 0; i < 32; i++) {
    v[i] = x[i];
  }
#pragma unroll
  for (uint step = 1; step < 32; step *= 2) {
#pragma unroll
    for (uint i = 0; i < 16; i++) {
      const uint a = i / step * 2u * step + i % step;
      const float first = v[a];
      v[a] = first + v[a + step];
      v[a + step] = first - v[a + step];
    }
  }
#pragma unroll
  for (uint i = 0; i < 32; i++) {
    x[i] = v[i] * 0.25f;
  }
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 104u;
}
inline ulong value_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 4u + offset) * 80u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_prefill_4287563d(
  const device float* qkv [[buffer(0)]],
  const device int32_t* query_tiles [[buffer(1)]],
  const device int32_t* positions [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* block_tables [[buffer(4)]],
  const device uint32_t* layer [[buffer(5)]],
  const device int8_t* k_arena [[buffer(6)]],
  const device uint8_t* v_arena [[buffer(7)]],
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
  const uint first_head = kv_head * 2u;
  const uint first_token = (uint)query_tiles[2 * threadgroup_position_in_grid.y + 1];
  if (query_tiles[2 * threadgroup_position_in_grid.y] < 0) {
    const uint count = (uint)(-1 - query_tiles[2 * threadgroup_position_in_grid.y]) * 192u;
    device float* row = out + (ulong)first_token * 192u;
    for (uint i = threadgroup_position_in_grid.x * 256u + thread_index_in_threadgroup; i < count; i += 256u) {
      row[i] = (float)0.0f;
    }
    return;
  }
  const uint sequence = (uint)query_tiles[2 * threadgroup_position_in_grid.y];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint num_tokens = min(16u, (uint)query_start[sequence + 1] - first_token);
  const uint first_position = (uint)positions[first_token];

  // Row r is query head first_head + r % 2 of token r / 2. Rows past the end stay zero and are not stored.
  MLXR_THREADGROUP(float4, q, 768);
  MLXR_THREADGROUP(uint, k_tile, 864);
  MLXR_THREADGROUP(uint, v_tile, 672);
  MLXR_THREADGROUP(float, weights, 1024);
  for (uint i = thread_index_in_threadgroup; i < 768u; i += 256u) {
    const uint row = i / 24u;
    const uint element = i % 24u * 4u;
    const uint t = row / 2u;
    float4 rotated = float4(0.0f);
    if (t < num_tokens) {
      const device float* head = qkv + (ulong)(first_token + t) * 384u +
          (first_head + row % 2u) * 96u;
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        rotated[j] = rotate(head, element + j, rotation(element + j, (int)(first_position + t))) * 0.147244453f;
      }
    }
    q[i] = rotated;
  }
  // Queries are mixed as keys are; a thread has a group.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 96u; i += 256u) {
    q4_mix_group((threadgroup float*)q + 32u * i);
  }

  float maximum[4];
  float total[4];
  float values[4][3];
#pragma unroll
  for (uint r = 0; r < 4u; r++) {
    maximum[r] = LOWEST;
    total[r] = 0.0f;
#pragma unroll
    for (uint d = 0; d < 3u; d++) {
      values[r][d] = 0.0f;
    }
  }
  const uint first_row = simd_gid * 4u;
  const uint end = first_position + num_tokens;
  const uint begin = 0u;

  for (uint first_key = begin; first_key < end; first_key += 32u) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 832u; i += 256u) {
      const uint key = i / 26u;
      const uint chunk = i % 26u;
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + key, end - 1);
      const ulong row = arena_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 104u;
      k_tile[key * 27u + chunk] = ((const device uint*)(k_arena + row))[chunk];
    }
    for (uint i = thread_index_in_threadgroup; i < 640u; i += 256u) {
      const uint key = i / 20u;
      const uint chunk = i % 20u;
      const uint at = min(first_key + key, end - 1);
      const ulong row = value_row((uint)table[(at) / 4u], layer[0], at % 4u) + kv_head * 80u;
      v_tile[key * 21u + chunk] = ((const device uint*)(v_arena + row))[chunk];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float scores[4];
#pragma unroll
    for (uint r = 0; r < 4u; r++) {
      scores[r] = 0.0f;
    }
    const uint own = lane;
    for (uint chunk = 0; chunk < 24u; chunk++) {
      float4 key[1];
      const threadgroup ushort* scales = (const threadgroup ushort*)(k_tile + own * 27u + 24u);
      key[0] = float4(as_type<char4>(k_tile[own * 27u + chunk])) * as_type<float>((uint)scales[chunk / 8u] << 16);
#pragma unroll
      for (uint r = 0; r < 4u; r++) {
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          scores[r] += sum4(key[j] * q[(first_row + r) * 24u + chunk * 1u + j]);
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
      for (uint d = 0; d < 3u; d++) {
        values[r][d] *= keep;
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup uint8_t* v = (threadgroup uint8_t*)v_tile;
    for (uint key = 0; key < 32u; key++) {
#pragma unroll
      for (uint d = 0; d < 3u; d++) {
        threadgroup uint8_t* row = v + key * 84u;
        const float scale = as_type<float>((uint)((threadgroup ushort*)(row + 72u))[d] << 16);
        const uint two = row[48u + 8u * d + lane % 8u] >> (lane / 8u * 2u) & 3u;
        const uint four = row[16u * d + lane % 16u] << (4u - lane / 16u * 4u) & 0xf0u;
        const float value = (float)(int8_t)(four | two << 2) * scale;
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
    // Sums of mixed values become sums of values.
#pragma unroll
    for (uint d = 0; d < 3u; d++) {
#pragma unroll
      for (ushort offset = 1; offset < 32; offset *= 2) {
        const float other = simd_shuffle_xor(values[r][d], offset);
        values[r][d] = (lane & offset) != 0 ? other - values[r][d] : values[r][d] + other;
      }
      values[r][d] *= 0.25f;
    }
    if (row < 32u && t < num_tokens) {
      device float* target = out + (ulong)(first_token + t) * 192u +
          (first_head + row % 2u) * 96u;
#pragma unroll
      for (uint d = 0; d < 3u; d++) {
        const uint element = lane + 32u * d;
        target[element] = (float)(values[r][d] / sum);
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
