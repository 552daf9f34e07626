// latent_decode_27fdac6a
// small spec of a test
//
// Decode: all of latent attention between its projections, in one launch. A threadgroup has 1 query head of a sequence.
// It multiplies its part of q by the head's k_b (a query in the space of rows), attends to the sequence's rows, of which the
// first 72 elements are also the value, and multiplies the result by the head's v_b. Its 8 simdgroups share the matrices'
// rows and the keys; lanes hold every 32nd vector of 4 elements of queries, of sums and of 2 rows.
// The new token's row, [norm(latent) | rope(key)], is made by each threadgroup and stored by that of the first heads; none
// reads its slot. The arena is written in place through its const input; `token` orders that against every other access.
// Grid: (6 groups of heads, seqs) threadgroups of 8 simdgroups.
//   q          [seqs, 240] bf16: 6 heads of 24 columns for k_b and 16 that are rotated
//   kv         [seqs, 144] bf16: the latent from column 56 on, 72, then the key, 16
//   kv_norm    [72] f32
//   k_b        [432, 24] bf16
//   v_b        [192, 72] bf16
//   positions, slots  [seqs] i32, of the new tokens; a slot is block * 16 + offset
//   block_tables  [1 + seqs * columns] i32: the columns, then the blocks of each sequence
//   latent_arena  [12, 1, 16, 1, 88] bf16, the new token's slot written in place
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 6, 32] bf16
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

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
}

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
inline void load_row_4(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
}
inline void load_row_8(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
  v[1] = *(const threadgroup float4*)(p + 4);
}
inline void load_row_16(const threadgroup float* p, thread float4* v) {
  v[0] = *(const threadgroup float4*)(p + 0);
  v[1] = *(const threadgroup float4*)(p + 4);
  v[2] = *(const threadgroup float4*)(p + 8);
  v[3] = *(const threadgroup float4*)(p + 12);
}

struct Row_bf16 {
  const device bfloat16_t* data;
};
struct Raw_bf16 { uint4 v; };
inline Raw_bf16 raw_bf16(Row_bf16 row, uint piece) { return Raw_bf16{*(const device uint4*)(row.data + piece * 8u)}; }
inline void codes_bf16(Raw_bf16 raw, uint run, thread float4* c) { unpack_bf16(raw.v, c); }

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
[[kernel]] void latent_decode_27fdac6a(
  const device bfloat16_t* q [[buffer(0)]],
  const device bfloat16_t* kv [[buffer(1)]],
  const device float* kv_norm [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device bfloat16_t* k_b [[buffer(4)]],
  const device bfloat16_t* v_b [[buffer(5)]],
  const device int32_t* positions [[buffer(6)]],
  const device int32_t* block_tables [[buffer(7)]],
  const device uint32_t* layer [[buffer(8)]],
  const device bfloat16_t* latent_arena [[buffer(9)]],
  const device uint32_t* token [[buffer(10)]],
  device bfloat16_t* out [[buffer(11)]],
  device uint32_t* token_out [[buffer(12)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint t = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[t];
  const uint first_head = threadgroup_position_in_grid.x * 1u;
  const device int* table = block_tables + 1 + (ulong)(t) * (uint)block_tables[0];
  const float factor = 0.22811012f;
  MLXR_THREADGROUP(float4, newest, 22);
  if (simd_gid == 7u) {
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

  // The queries in the space of rows. Heads past the last one repeat it, and are not stored.
  MLXR_THREADGROUP(float4, turned, 22);
  for (uint h = 0; h < 1u; h++) {
    const uint head = min(first_head + h, 5u);
    const device bfloat16_t* input = q + (ulong)t * 240u + head * 40u;
    threadgroup float* target = (threadgroup float*)turned + h * 88u;
    for (uint base = simdgroup_index_in_threadgroup * 32u; base < 72u; base += 256u) {
      const uint end = 72u;
      const uint head_row = head * 72u;
      // 8 lanes to a row; those past the last row repeat others.
      const uint own = base + thread_index_in_simdgroup / 8u * 8u;
      const uint first = own < end ? own : base;
      const uint lane = thread_index_in_simdgroup % 8u;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{k_b + (ulong)row * 24u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 2u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 3u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      load_bf16_8(input + column + run * 8u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[2];
        codes_bf16(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    float total = sum4(sums[r]);
#pragma unroll
    for (ushort offset = 4; offset > 0; offset /= 2) {
      total += simd_shuffle_xor(total, offset);
    }
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end && own < end) {
        target[o] = y * factor;
      }
    }
    for (uint i = thread_index_in_threadgroup; i < 16u; i += 256u) {
      target[72u + i] = rotate(input + 24u, i, rotation(i, (int)position)) * factor;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float4 queries[1][1];
  float4 values[1][1];
  float maximum[1];
  float total[1];
#pragma unroll
  for (uint h = 0; h < 1u; h++) {
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      const uint at = lane + 32u * i;
      queries[h][i] = at < 22u ? turned[h * 22u + at] : float4(0.0f);
    }
  }
#pragma unroll
  for (uint h = 0; h < 1u; h++) {
    maximum[h] = LOWEST;
    total[h] = 0.0f;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      values[h][i] = float4(0.0f);
    }
  }
  if (simd_gid == 0) {
#pragma unroll
    for (uint h = 0; h < 1u; h++) {
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

  for (uint first_key = simd_gid * 2u; first_key < position; first_key += 16u) {
    float4 rows[2][1];
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + u, position - 1);
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
    for (uint h = 0; h < 1u; h++) {
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
        scores[u] = first_key + u < position ? score : LOWEST;
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
        const float weight = first_key + u < position ? exp2(scores[u] - largest) : 0.0f;
        total[h] += weight;
        const float part = weight;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          values[h][i] += rows[u][i] * part;
        }
      }
    }
  }

  MLXR_THREADGROUP(float, maxima, 8);
  MLXR_THREADGROUP(float, totals, 8);
  MLXR_THREADGROUP(float4, sums_of_others, 72);
  if (lane == 0) {
#pragma unroll
    for (uint h = 0; h < 1u; h++) {
      maxima[simd_gid * 1u + h] = maximum[h];
      totals[simd_gid * 1u + h] = total[h];
    }
  }
  MLXR_THREADGROUP(float4, attended, 18);
#pragma unroll
  for (uint h = 0; h < 1u; h++) {
    // A head's sums by the largest maximum; then half of the simdgroups add those of the other half to their own, until one
    // has the sums of all.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float largest = maxima[h];
#pragma unroll
    for (uint s = 1; s < 8u; s++) {
      largest = max(largest, maxima[s * 1u + h]);
    }
    float sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < 8u; s++) {
      sum += totals[s * 1u + h] * exp2(maxima[s * 1u + h] - largest);
    }
    const float weight = exp2(maximum[h] - largest) / sum;
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      values[h][i] *= weight;
    }
    if (simd_gid >= 4u && simd_gid < 8u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          sums_of_others[(simd_gid - 4u) * 18u + lane + 32u * i] = values[h][i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid < 4u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          values[h][i] += sums_of_others[simd_gid * 18u + lane + 32u * i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid >= 2u && simd_gid < 4u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          sums_of_others[(simd_gid - 2u) * 18u + lane + 32u * i] = values[h][i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid < 2u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          values[h][i] += sums_of_others[simd_gid * 18u + lane + 32u * i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid >= 1u && simd_gid < 2u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          sums_of_others[(simd_gid - 1u) * 18u + lane + 32u * i] = values[h][i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid < 1u) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          values[h][i] += sums_of_others[simd_gid * 18u + lane + 32u * i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_gid == 0) {
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        if (lane + 32u * i < 18u) {
          attended[lane + 32u * i] = values[h][i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup float* input = (const threadgroup float*)attended;
    device bfloat16_t* target = out + ((ulong)t * 6u + first_head) * 32u;
    for (uint base = simdgroup_index_in_threadgroup * 16u; base < 32u; base += 128u) {
      const uint end = 32u;
      const uint head_row = first_head * 32u;
      // 16 lanes to a row; those past the last row repeat others.
      const uint own = base + thread_index_in_simdgroup / 16u * 8u;
      const uint first = own < end ? own : base;
      const uint lane = thread_index_in_simdgroup % 16u;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_bf16 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_bf16{v_b + (ulong)row * 72u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_bf16 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_bf16(w[r], min(lane + step * 32u, 8u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 9u) {
      break;
    }
    const thread Raw_bf16* raw = raws[step];
    const uint column = piece * 8u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[2];
      load_row_8(input + column + run * 8u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[2];
        codes_bf16(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    float total = sum4(sums[r]);
#pragma unroll
    for (ushort offset = 8; offset > 0; offset /= 2) {
      total += simd_shuffle_xor(total, offset);
    }
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end && own < end) {
        target[o] = (bfloat16_t)y;
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
