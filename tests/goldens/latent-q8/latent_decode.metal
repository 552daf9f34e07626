// latent_decode_44ec5a29
// small spec of a test
//
// Decode: all of latent attention between its projections, in one launch. A threadgroup has 1 query head of a sequence.
// It multiplies its part of q by the head's k_b (a query in the space of rows), attends to the sequence's rows, of which the
// first 72 elements are also the value, and multiplies the result by the head's v_b. Its 8 simdgroups share the matrices'
// rows and the keys; lanes hold every 32nd vector of 4 elements of queries, of sums and of 2 rows.
// The new token's row, [norm(latent) | rope(key)], is made by each threadgroup and stored by that of the first heads; none
// reads its slot. The arena is written in place through its const input; `token` orders that against every other access.
// Grid: (6 groups of heads, seqs) threadgroups of 8 simdgroups.
//   q          [seqs, 328] f32: 6 heads of 24 columns for k_b and 16 that are rotated
//   kv         [seqs, 328] f32: the latent from column 240 on, 72, then the key, 16
//   kv_norm    [72] f32
//   k_b        [432, 24] f32
//   v_b        [192, 72] f32
//   positions, slots  [seqs] i32, of the new tokens; a slot is block * 16 + offset
//   latent_arena  [3, 1, 16, 1, 92] q8, the new token's slot written in place
//     a row: 88 int8 numbers and their f32 scale; number * scale is the element
//   layer      [8] u32: the layer first
//   token, token_out  [8] u32
//   out        [seqs, 6, 32] f32
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline void unpack_q8(uint u, thread float4* v) { v[0] = float4(as_type<char4>(u)); }

inline void unpack_f32(uint4 u, thread float4* v) { v[0] = as_type<float4>(u); }

inline void load_q8_4(const device int8_t* p, thread float4* v) { unpack_q8(*(const device uint*)p, v); }

inline void load_f32_4(const device float* p, thread float4* v) {
  v[0] = *(const device float4*)(p + 0);
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

struct Row_f32 {
  const device float* data;
};
struct Raw_f32 { float4 v; };
inline Raw_f32 raw_f32(Row_f32 row, uint piece) { return Raw_f32{*(const device float4*)(row.data + piece * 4u)}; }
inline void codes_f32(Raw_f32 raw, uint run, thread float4* c) { c[0] = raw.v; }

constant float rope_frequencies[8] = {
  1.0f, 0.23717083f, 0.0500000007f, 0.00790569372f, 0.00249999994f, 0.000790569407f,
  0.000250000012f, 7.90569393e-05f,
};

struct Rotation {
  float cosine;
  float sine;
  uint partner;
};

inline Rotation rotation(uint element, int position) {
  const bool first = (element & 1u) == 0u;
  const uint pair = element >> 1;
  const uint partner = element ^ 1u;
  const float angle = (float)position * rope_frequencies[pair];
  const float sine = metal::precise::sin(angle) * 1.13862944f;
  return Rotation{metal::precise::cos(angle) * 1.13862944f, first ? -sine : sine, partner};
}

inline float rotate(const device float* head, uint element, Rotation r) {
  return (float)head[element] * r.cosine + (float)head[r.partner] * r.sine;
}
inline float q8_magnitude(float x) { return metal::isfinite(x) ? metal::abs(x) : INFINITY; }
inline float q8_scale(float largest) { return metal::isfinite(largest) ? largest / 127.0f : NAN; }
// A subnormal scale is so coarse that a quotient may exceed 127.
inline int8_t q8_number(float x, float scale) {
  return scale > 0.0f ? (int8_t)metal::rint(metal::clamp(x / scale, -127.0f, 127.0f)) : (int8_t)0;
}
// 1 / rms of n elements, by the lanes of a simdgroup.
inline float inverse_rms(const device float* x, uint n, float inverse, uint lane) {
  float squares = 0.0f;
  for (uint i = lane; i < n; i += 32) {
    squares += (float)x[i] * (float)x[i];
  }
  return metal::precise::rsqrt(simd_sum(squares) * inverse + 0.00999999978f);
}
inline ulong arena_row(uint block, uint layer, uint offset) {
  return (((ulong)block * 1u + layer) * 16u + offset) * 92u;
}
#define LOWEST (-3.0e38f)
// ---- kernel
[[kernel]] void latent_decode_44ec5a29(
  const device float* q [[buffer(0)]],
  const device float* kv [[buffer(1)]],
  const device float* kv_norm [[buffer(2)]],
  const device int32_t* slots [[buffer(3)]],
  const device float* k_b [[buffer(4)]],
  const device float* v_b [[buffer(5)]],
  const device int32_t* positions [[buffer(6)]],
  const device uint32_t* layer [[buffer(7)]],
  const device int8_t* latent_arena [[buffer(8)]],
  const device uint32_t* token [[buffer(9)]],
  device float* out [[buffer(10)]],
  device uint32_t* token_out [[buffer(11)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint simd_gid = simdgroup_index_in_threadgroup;
  const uint t = threadgroup_position_in_grid.y;
  const uint position = (uint)positions[t];
  const uint first_head = threadgroup_position_in_grid.x * 1u;
  const float factor = 0.22811012f;
  MLXR_THREADGROUP(float4, newest, 22);
  if (simd_gid == 7u) {
  const device float* latent = kv + (ulong)t * 328u + 240u;
  const device float* key = latent + 72u;
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
  float largest_of_row = 0.0f;
#pragma unroll
  for (uint i = 0; i < 3u; i++) {
    largest_of_row = max(largest_of_row, q8_magnitude(row[i]));
  }
  const float row_scale = q8_scale(simd_max(largest_of_row));

    threadgroup float* to = (threadgroup float*)newest;
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      if (lane + 32u * i < 88u) {
        to[lane + 32u * i] = (float)q8_number(row[i], row_scale) * row_scale;
      }
    }
    if (threadgroup_position_in_grid.x == 0) {
      const uint slot = (uint)slots[t];
      device int8_t* target = const_cast<device int8_t*>(latent_arena) +
          arena_row(slot / 16u, layer[0], slot % 16u);
      if (lane == 0) {
        *(device float*)(target + 88) = row_scale;
      }
#pragma unroll
      for (uint i = 0; i < 3u; i++) {
        const uint element = lane + 32u * i;
        if (element < 88u) {
          target[element] = q8_number(row[i], row_scale);
        }
      }
    }
  }

  // The queries in the space of rows. Heads past the last one repeat it, and are not stored.
  MLXR_THREADGROUP(float4, turned, 22);
  for (uint h = 0; h < 1u; h++) {
    const uint head = min(first_head + h, 5u);
    const device float* input = q + (ulong)t * 328u + head * 40u;
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

  Row_f32 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_f32{k_b + (ulong)row * 24u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_f32 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 5u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 6u) {
      break;
    }
    const thread Raw_f32* raw = raws[step];
    const uint column = piece * 4u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      load_f32_4(input + column + run * 4u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[1];
        codes_f32(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
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
    float scales[2];
#pragma unroll
    for (uint u = 0; u < 2u; u++) {
      // Keys past the end repeat the last one; their weight is zero.
      const uint at = min(first_key + u, position - 1);
      const device int8_t* row = latent_arena + arena_row((at) / 16u, layer[0], at % 16u);
#pragma unroll
      for (uint i = 0; i < 1u; i++) {
        const uint element = (lane + 32u * i) * 4u;
        rows[u][i] = float4(0.0f);
        if (element < 88u) {
          load_q8_4(row + element, &rows[u][i]);
        }
      }
      scales[u] = *(const device float*)(row + 88);
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
        const float score = simd_sum(sum4(products)) * scales[u];
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
        const float part = weight * scales[u];
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
    device float* target = out + ((ulong)t * 6u + first_head) * 32u;
    for (uint base = simdgroup_index_in_threadgroup * 8u; base < 32u; base += 64u) {
      const uint end = 32u;
      const uint head_row = first_head * 32u;
      const uint first = base;
  float4 sums[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    sums[r] = float4(0.0f);
  }

  Row_f32 w[8];
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const uint row = head_row + first + r;
    w[r] = Row_f32{v_b + (ulong)row * 72u};
  }
  // Lanes without columns in the last step load what they will not use, so that no load waits for a comparison.
  Raw_f32 raws[1][8];
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
#pragma unroll
    for (uint r = 0; r < 8u; r++) {
      raws[step][r] = raw_f32(w[r], min(lane + step * 32u, 17u));
    }
  }
#pragma unroll
  for (uint step = 0; step < 1u; step++) {
    const uint piece = lane + step * 32u;
    if (piece >= 18u) {
      break;
    }
    const thread Raw_f32* raw = raws[step];
    const uint column = piece * 4u;
#pragma unroll
    for (uint run = 0; run < 1u; run++) {
      float4 v[1];
      load_row_4(input + column + run * 4u, v);

#pragma unroll
      for (uint r = 0; r < 8u; r++) {
        float4 c[1];
        codes_f32(raw[r], run, c);
#pragma unroll
        for (uint j = 0; j < 1u; j++) {
          sums[r] += c[j] * v[j];
        }
      }
    }
  }
  // Lane r keeps row r, so that the epilogue runs in parallel.
  float y = 0.0f;
#pragma unroll
  for (uint r = 0; r < 8u; r++) {
    const float total = simd_sum(sum4(sums[r]));
    y = lane == r ? total : y;
  }
      const uint o = first + lane;
      if (lane < 8u && o < end) {
        target[o] = (float)y;
      }
    }
  }
  if (threadgroup_position_in_grid.x == 0 && threadgroup_position_in_grid.y == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
