// attend_latent_part_8e11fc6c
// small spec of a test
//
// Attention of a token to the rows of its sequence, of which the first 72 elements are also the value: so a row is loaded
// once for its score and its sum. A simdgroup has 4 query heads; its lanes hold every 32nd vector of 4 elements of the
// queries, of the sums and of 2 rows. 4 simdgroups share the keys of the same heads.
// Grid: (1 groups of heads, tokens, 3 partitions) threadgroups of 8 simdgroups.
//   q          [tokens, 6, 88] bf16, rotated
//   kv         [tokens, 144] bf16: the latent from column 56 on, 72, then the key, 16
//   kv_norm    [72] f32
//   slots      [tokens] i32: block * 16 + offset, of the new tokens
//   positions  [tokens] i32
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   latent_arena  [12, 1, 16, 1, 88] bf16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   partial    [seqs, 6, 3, 72] f32
//   stats      [seqs, 6, 3, 4] f32: maximum (base 2), sum, unused
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

inline void load_bf16_4(const device bfloat16_t* p, thread float4* v) {
  v[0] = widen_bf16(*(const device uint2*)p);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
constant float rope_frequencies[8] = {
  1.0f, 0.316227764f, 0.100000001f, 0.0316227749f, 0.00999999978f, 0.00316227763f,
  0.00100000005f, 0.000316227757f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = element < 8u;
  const uint pair = first ? element : element - 8u;
  const uint partner = first ? element + 8u : pair;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle);
  return Rotation{metal::precise::cos(angle), first ? -sine : sine, partner};
}

inline float rotate(const device bfloat16_t* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
// 1 / rms of n elements, by the lanes of a simdgroup.
inline float inverse_rms(const device bfloat16_t* x, uint n, float inverse, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < n; i += 32) {
    squares += (float)x[i] * (float)x[i];
  }
  return metal::precise::rsqrt(simd_sum(squares) * inverse + 9.99999975e-06f);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 88u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void attend_latent_part_8e11fc6c(
  const device bfloat16_t* q [[buffer(0)]],
  const device bfloat16_t* kv [[buffer(1)]],
  const device float* kv_norm [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device int32_t* positions [[buffer(4)]],
  const device int32_t* block_tables [[buffer(5)]],
  const device uint32_t* layer [[buffer(6)]],
  const device bfloat16_t* latent_arena [[buffer(7)]],
  const device uint32_t* token [[buffer(8)]],
  device float* partial [[buffer(9)]],
  device float* stats [[buffer(10)]],
  device uint32_t* token_out [[buffer(11)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint group = simdgroup_index_in_threadgroup / 4u;
  const uint share = simdgroup_index_in_threadgroup % 4u;
  const uint t = threadgroup_position_in_grid.y;
  const uint sequence = t;
  const uint position = (uint)positions[t];
  const device int* table = block_tables + 1 + (ulong)(sequence) * (uint)block_tables[0];
  const uint first_head = threadgroup_position_in_grid.x * 8u + group * 4u;
  const uint start = 0u;
  const uint length = (position - start) / 48u * 16u + 16u;
  const uint partition = threadgroup_position_in_grid.z;
  const uint begin = start + partition * length;
  const uint end = min(begin + length, position);
  if (begin > position) {
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && threadgroup_position_in_grid.z == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
    return;
  }
  // The partition with the new token makes its row; the threadgroup of the first heads stores it.
  const bool owner = position - begin < length;
  MLXR_THREADGROUP(float4, newest, 22);
  if (owner && simdgroup_index_in_threadgroup == 0) {
  const device bfloat16_t* latent = kv + (ulong)t * 144u + 56u;
  const device bfloat16_t* key = latent + 72u;
  const float of_latent = inverse_rms(latent, 72u, 0.013888889f, lane);
  float row[3];
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    const uint element = lane + 32u * i;
    row[i] = 0.0f;
    if (element < 72u) {
      row[i] = (float)latent[element] * of_latent * (float)kv_norm[element];
    } else if (element < 88u) {
      row[i] = rotate(key, element - 72u, rotation(element - 72u, (int)position));
    }
  }

    threadgroup float* to = (threadgroup float*)newest;
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      if (lane + 32u * i < 88u) {
        to[lane + 32u * i] = (float)(bfloat16_t)row[i];
      }
    }
    if (threadgroup_position_in_grid.x == 0) {
      const uint slot = (uint)slots[t];
      device bfloat16_t* target = const_cast<device bfloat16_t*>(latent_arena) +
          arena_row(slot / 16u, layer[0], slot % 16u);
#pragma unroll
      for (uint i = 0; i < 3u; i++) {
        const uint element = lane + 32u * i;
        if (element < 88u) {
          target[element] = (bfloat16_t)row[i];
        }
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float factor = 0.22811012f;

  float4 queries[4][1];
  float4 values[4][1];
  float maximum[4];
  float total[4];
#pragma unroll
  for (uint h = 0; h < 4u; h++) {
    // Heads past the last one repeat it, and are not stored.
    const uint head = min(first_head + h, 5u);
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      queries[h][i] = float4(0.0f);
      if (element < 88u) {
        load_bf16_4(q + ((ulong)t * 6u + head) * 88u + element, &queries[h][i]);
        queries[h][i] *= factor;
      }
    }
  }
#pragma unroll
  for (uint h = 0; h < 4u; h++) {
    maximum[h] = LOWEST;
    total[h] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      values[h][i] = float4(0.0f);
    }
  }
  if (owner && share == 0) {
#pragma unroll
    for (uint h = 0; h < 4u; h++) {
      float4 products = float4(0.0f);
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 22u) {
          products += queries[h][i] * newest[lane + 32u * i];
        }
      }
      maximum[h] = simd_sum(sum4(products));
      total[h] = 1.0f;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        // Elements past the value's end are not stored.
        values[h][i] = newest[min(lane + 32u * i, 17u)];
      }
    }
  }

  for (uint first_key = begin + share * 2u; first_key < end; first_key += 8u) {
    float4 rows[2][1];
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + u, end - 1);
      const device bfloat16_t* row = latent_arena + arena_row((uint)table[(at) / 16u], layer[0], at % 16u);
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        const uint element = (lane + 32u * i) * 4u;
        rows[u][i] = float4(0.0f);
        if (element < 88u) {
          load_bf16_4(row + element, &rows[u][i]);
        }
      }
    }
#pragma unroll
    for (uint h = 0; h < 4u; h++) {
      float scores[2];
      float largest = maximum[h];
#pragma unroll
      for (uint u = 0; u < 2u; u++) {
        float4 products = queries[h][0] * rows[u][0];
#pragma unroll
        for (uint i = 1; i < 1u; i++) {
          products += queries[h][i] * rows[u][i];
        }
        const float score = simd_sum(sum4(products));
        scores[u] = first_key + u < end ? score : LOWEST;
        largest = max(largest, scores[u]);
      }
      const float keep = exp2(maximum[h] - largest);
      maximum[h] = largest;
      total[h] *= keep;
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        values[h][i] *= keep;
      }
#pragma unroll
      for (uint u = 0; u < 2u; u++) {
        const float weight = first_key + u < end ? exp2(scores[u] - largest) : 0.0f;
        total[h] += weight;
        const float part = weight;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          values[h][i] += rows[u][i] * part;
        }
      }
    }
  }

  // One head after the other: each simdgroup leaves its sums, then all of them are added up.
  MLXR_THREADGROUP(float, maxima, 32);
  MLXR_THREADGROUP(float, totals, 32);
  MLXR_THREADGROUP(float, sums, 576);
  if (lane == 0) {
#pragma unroll
    for (uint h = 0; h < 4u; h++) {
      maxima[simdgroup_index_in_threadgroup * 4u + h] = maximum[h];
      totals[simdgroup_index_in_threadgroup * 4u + h] = total[h];
    }
  }
#pragma unroll
  for (uint h = 0; h < 4u; h++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint element = (lane + 32u * i) * 4u;
      if (element < 72u) {
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          sums[simdgroup_index_in_threadgroup * 72u + element + j] = values[h][i][j];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_threadgroup; i < 144u; i += 256u) {
      const uint of = i / 72u;
      const uint element = i % 72u;
      const uint head = threadgroup_position_in_grid.x * 8u + of * 4u + h;
      float largest = LOWEST;
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        largest = max(largest, maxima[(of * 4u + s) * 4u + h]);
      }
      float sum = 0.0f;
      float v = 0.0f;
#pragma unroll
      for (uint s = 0; s < 4u; s++) {
        const uint from = of * 4u + s;
        const float weight = exp2(maxima[from * 4u + h] - largest);
        sum += totals[from * 4u + h] * weight;
        v += sums[from * 72u + element] * weight;
      }
      if (head < 6u) {
        const ulong place = ((ulong)sequence * 6u + head) * 3u + partition;
        partial[place * 72u + element] = v;
        if (element == 0) {
          stats[place * 4] = largest;
          stats[place * 4 + 1] = sum;
        }
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && threadgroup_position_in_grid.z == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
