// delta_solve_15655d32
// small spec of a test
//
// Of each chunk of 64 tokens of a head, with k and q divided by their lengths, and the decay d(i, j) from token j to
// token i: the corrections (1 + A)^-1 beta, by forward substitution, where A(i, j) = beta_i (k_i . k_j) d(i, j) for j < i;
// and the answers (q_i . k_j) d(i, j) for j <= i.
// Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", in its form by chunks.
// Grid: (4 heads, chunks of all sequences or more) threadgroups of 4 simdgroups.
//   q  [tokens, 448] bf16: from column 0 on
//   k  [tokens, 448] bf16: from column 128 on
//   a  [tokens, 648] bf16: from column 640 on
//   b  [tokens, 648] bf16: from column 644 on
//   rate, dt_bias  [4] f32
//   query_start  [seqs + 1] i32: first token of each sequence
//   dims         [8] u32: sequences second
//   state_table  [1 + seqs * columns] i32: see gated_delta
//   corrections, answers  [tokens, 4 * 64] u32: of each head a row of the chunk's matrix: of 16 columns and a lane of
//     four two words with its pairs of the matrix instruction's second factor, and two with what they leave out
//   factors  [tokens, 4 * 4] f32: of each head what multiplies S^T k, S^T q, and k in the state after the tokens up to
//     the next state that is kept, or the chunk's end; and what multiplies the state#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_PACK
inline uint pack_bf16(float a, float b) {
  return (uint)as_type<uint16_t>((bfloat16_t)a) | (uint)as_type<uint16_t>((bfloat16_t)b) << 16;
}
#endif
inline uint2 pack_bf16_4(float4 a) { return uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w)); }
inline uint4 pack_bf16_8(float4 a, float4 b) { return uint4(pack_bf16_4(a), pack_bf16_4(b)); }
// The bf16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return as_type<float2>(uint2(pair << 16, pair & 0xffff0000u));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_bf16(uint4 a, uint2 b, float4 c, uint lane) {
  for (uint t = 0; t < 4; t++) {
    const uint row = lane / 4 * 4 + t, column = lane % 4 * 8 + t;
    const uint4 w = uint4(simd_shuffle(a.x, row), simd_shuffle(a.y, row), simd_shuffle(a.z, row), simd_shuffle(a.w, row));
    const uint2 even = uint2(simd_shuffle(b.x, column), simd_shuffle(b.y, column));
    const uint2 odd = uint2(simd_shuffle(b.x, column + 4), simd_shuffle(b.y, column + 4));
    c.x = pair_product(w.z, even.y, pair_product(w.x, even.x, c.x));
    c.y = pair_product(w.z, odd.y, pair_product(w.x, odd.x, c.y));
    c.z = pair_product(w.w, even.y, pair_product(w.y, even.x, c.z));
    c.w = pair_product(w.w, odd.y, pair_product(w.y, odd.x, c.w));
  }
  return c;
}
#endif
#ifndef MLXR_HALVES
// The lower halves of two words, and the upper.
inline uint lower_halves(uint a, uint b) { return (a & 0xffffu) | b << 16; }
inline uint upper_halves(uint a, uint b) { return a >> 16 | (b & 0xffff0000u); }
#endif
// Two numbers as a pair of bf16 numbers, and what that leaves out as another pair.
inline uint2 parts_of(float x, float y) {
  const uint upper = pack_bf16(x, y);
  const float2 kept = floats_of(upper);
  return uint2(upper, pack_bf16(x - kept.x, y - kept.y));
}
inline float softplus(float x) {
  const float u = metal::precise::exp(-metal::abs(x));
  const float s = u / (u + 2.0f);
  const float t = s * s;
  float p = fma(t, 0.0666666701f, 0.0769230798f);
  p = fma(p, t, 0.0909090936f);
  p = fma(p, t, 0.111111112f);
  p = fma(p, t, 0.142857149f);
  p = fma(p, t, 0.200000003f);
  p = fma(p, t, 0.333333343f);
  return max(x, 0.0f) + 2.0f * fma(p * t, s, s);
}
inline float sigmoid(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }
// The decay of which the logarithm is given in units of 2^-24.
inline float decay(long log) { return metal::precise::exp((float)log * 5.96046448e-08f); }
inline float square(uint pair) {
  const float2 v = floats_of(pair);
  return fma(v.x, v.x, v.y * v.y);
}
inline float squares(uint4 pairs) { return (square(pairs.x) + square(pairs.y)) + (square(pairs.z) + square(pairs.w)); }
inline float over_quad(float x) {
  x += simd_shuffle_xor(x, 1);
  return x + simd_shuffle_xor(x, 2);
}
// ---- kernel
[[kernel]] void delta_solve_15655d32(
  const device bfloat16_t* q [[buffer(0)]],
  const device bfloat16_t* k [[buffer(1)]],
  const device bfloat16_t* a [[buffer(2)]],
  const device bfloat16_t* b [[buffer(3)]],
  const device int32_t* query_start [[buffer(4)]],
  const device int32_t* state_table [[buffer(5)]],
  const device uint32_t* dims [[buffer(6)]],
  const device float* rate [[buffer(7)]],
  const device float* dt_bias [[buffer(8)]],
  device uint32_t* corrections [[buffer(9)]],
  device uint32_t* answers [[buffer(10)]],
  device float* factors [[buffer(11)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  MLXR_THREADGROUP(float4, matrix, 1088);
  MLXR_THREADGROUP(long, logs, 64);
  MLXR_THREADGROUP(long, sums, 64);
  MLXR_THREADGROUP(float, betas, 64);
  MLXR_THREADGROUP(float, unit_k, 64);
  MLXR_THREADGROUP(float, unit_q, 64);
  const uint head = threadgroup_position_in_grid.x;
  // The chunks of each sequence in turn.
  uint sequence = 0;
  int end = query_start[1];
  int first = query_start[0] + (int)threadgroup_position_in_grid.y * 64;
  while (first >= end) {
    sequence++;
    if (sequence >= dims[1]) {
      return;
    }
    const int chunks = (end - query_start[sequence - 1] + 63) / 64;
    first += end - query_start[sequence - 1] - chunks * 64;
    end = query_start[sequence + 1];
  }
  const int count = min(64, end - first);
  const uint id = thread_index_in_threadgroup;
  const uint lane = thread_index_in_simdgroup;
  const uint group = lane / 4, quad = lane % 4;
  if (id < 64u) {
    float log_decay = 0.0f, beta = 0.0f;
    if ((int)id < count) {
      const ulong t = (ulong)first + id;
      const float x = (float)a[t * 648u + 640u + head] + dt_bias[head];
      log_decay = max(rate[head] * softplus(x), -128.0f);
      beta = sigmoid((float)b[t * 648u + 644u + head]);
    }
    logs[id] = (long)metal::rint(log_decay * 16777216.0f);
    betas[id] = beta;
  }

  // A simdgroup has 16 rows, of which a lane has rows group and group + 8, and multiplies them by all tokens: without a
  // branch, so that loads are in flight together. Of each 32 elements a lane takes eight, from 8 quad on. Rows past the end repeat
  // the last one.
  const uint own_row = simdgroup_index_in_threadgroup * 16 + group;
  const device bfloat16_t* of_k = k + 128u + (head / 2u) * 64u + quad * 8;
  const device bfloat16_t* of_q = q + 0u + (head / 2u) * 64u + quad * 8;
  const ulong upper_row = (ulong)min(first + (int)own_row, end - 1), lower_row = (ulong)min(first + (int)own_row + 8, end - 1);
  float4 of_keys[8], of_queries[8];
  float4 lengths = float4(0.0f);
#pragma unroll
  for (uint n = 0; n < 8u; n++) {
    of_keys[n] = float4(0.0f);
    of_queries[n] = float4(0.0f);
  }
#pragma unroll
  for (uint c = 0; c < 64u; c += 32) {
    const uint4 k_upper = *(const device uint4*)(of_k + upper_row * 448u + c);
    const uint4 k_lower = *(const device uint4*)(of_k + lower_row * 448u + c);
    const uint4 q_upper = *(const device uint4*)(of_q + upper_row * 448u + c);
    const uint4 q_lower = *(const device uint4*)(of_q + lower_row * 448u + c);
    lengths += float4(squares(k_upper), squares(k_lower), squares(q_upper), squares(q_lower));
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const uint4 other = *(const device uint4*)(of_k + (ulong)min(first + (int)(n * 8 + group), end - 1) * 448u + c);
      of_keys[n] = mma_bf16(uint4(k_upper.x, k_lower.x, k_upper.y, k_lower.y), other.xy, of_keys[n], lane);
      of_queries[n] = mma_bf16(uint4(q_upper.x, q_lower.x, q_upper.y, q_lower.y), other.xy, of_queries[n], lane);
      of_keys[n] = mma_bf16(uint4(k_upper.z, k_lower.z, k_upper.w, k_lower.w), other.zw, of_keys[n], lane);
      of_queries[n] = mma_bf16(uint4(q_upper.z, q_lower.z, q_upper.w, q_lower.w), other.zw, of_queries[n], lane);
    }
  }
  lengths = float4(over_quad(lengths.x), over_quad(lengths.y), over_quad(lengths.z), over_quad(lengths.w));
  if (quad == 0) {
    unit_k[own_row] = metal::precise::rsqrt(lengths.x + 9.99999997e-07f);
    unit_k[own_row + 8] = metal::precise::rsqrt(lengths.y + 9.99999997e-07f);
    unit_q[own_row] = metal::precise::rsqrt(lengths.z + 9.99999997e-07f) * 0.125f;
    unit_q[own_row + 8] = metal::precise::rsqrt(lengths.w + 9.99999997e-07f) * 0.125f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (id < 64u) {
    long sum = 0;
#pragma unroll
    for (uint j = 0; j < 64u; j++) {
      sum += j <= id ? logs[j] : 0;
    }
    sums[id] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup float* system = (threadgroup float*)matrix;
#pragma unroll
  for (uint r = 0; r < 2; r++) {
    const uint i = own_row + 8 * r;
    const long sum = sums[i];
    const float of_system = betas[i] * unit_k[i];
    device uint4* to = (device uint4*)answers + ((ulong)min(first + (int)i, end - 1) * 4u + head) * 16u + quad;
#pragma unroll
    for (uint m = 0; m < 4u; m++) {
      uint2 answer[2];
#pragma unroll
      for (uint h = 0; h < 2; h++) {
        const uint n = 2 * m + h, j = n * 8 + quad * 2;
        const float decay_x = decay(min(sum - sums[j], (long)0)), decay_y = decay(min(sum - sums[j + 1], (long)0));
        const float of_x = (j <= i ? 1.0f : 0.0f) * unit_k[j] * decay_x, of_y = (j < i ? 1.0f : 0.0f) * unit_k[j + 1] * decay_y;
        const float2 keys = r ? of_keys[n].zw : of_keys[n].xy;
        const float2 queries = r ? of_queries[n].zw : of_queries[n].xy;
        system[i * 68u + j] = of_system * of_x * keys.x;
        system[i * 68u + j + 1] = of_system * of_y * keys.y;
        answer[h] = parts_of(unit_q[i] * of_x * queries.x, unit_q[i] * of_y * queries.y);
      }
      if ((int)i < count) {
        to[m * 4] = uint4(answer[0].x, answer[1].x, answer[0].y, answer[1].y);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // A thread has a column of the inverse, which takes the place of the matrix, 16 rows after the other. Of two lanes, which
  // have neighbouring columns, the first stores the pairs, and the second what these leave out.
  const bool second = id % 2;
  device uint* to = corrections + ((ulong)first * 4u + head) * 64u + (id / 16 * 4 + id % 8 / 2) * 4 + id % 16 / 8 + (second ? 2u : 0u);
  for (uint top = 0; top < 64u; top += 16) {
    float rows[16];
    if (id < 64u) {
#pragma unroll
      for (uint i = 0; i < 16; i++) {
        rows[i] = top + i == id ? 1.0f : 0.0f;
      }
      // The columns of a simdgroup begin with zeros.
      for (uint j = id / 32 * 32; j < top; j += 4) {
        const float4 above = float4(system[j * 68u + id], system[(j + 1) * 68u + id], system[(j + 2) * 68u + id], system[(j + 3) * 68u + id]);
#pragma unroll
        for (uint i = 0; i < 16; i++) {
          const float4 v = matrix[((top + i) * 68u + j) / 4];
          rows[i] = fma(-v.w, above.w, fma(-v.z, above.z, fma(-v.y, above.y, fma(-v.x, above.x, rows[i]))));
        }
      }
#pragma unroll
      for (uint i = 1; i < 16; i++) {
#pragma unroll
        for (uint j = 0; j < i; j += 4) {
          const float4 v = matrix[((top + i) * 68u + top + j) / 4];
          rows[i] = fma(-v.x, rows[j], rows[i]);
          rows[i] = j + 1 < i ? fma(-v.y, rows[j + 1], rows[i]) : rows[i];
          rows[i] = j + 2 < i ? fma(-v.z, rows[j + 2], rows[i]) : rows[i];
          rows[i] = j + 3 < i ? fma(-v.w, rows[j + 3], rows[i]) : rows[i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (id < 64u) {
      const float beta = betas[id];
#pragma unroll
      for (uint i = 0; i < 16; i++) {
        system[(top + i) * 68u + id] = rows[i];
        const float own = rows[i] * beta;
        const float other = simd_shuffle_xor(own, 1);
        const uint2 parts = parts_of(second ? other : own, second ? own : other);
        if ((int)(top + i) < count) {
          to[(top + i) * 256u] = second ? parts.y : parts.x;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if ((int)id < count) {
    // The tokens between two states that are kept, or the chunk's ends: from `from` on, before `until`.
    const int columns = state_table[0];
    const device int* slots = state_table + 1 + (ulong)sequence * columns;
    int from = 0, until = count;
    for (int t = max(first, end - columns + 1); t < first + count; t++) {
      const int cut = t + 1 - first;
      if (slots[end - t] >= 0) {
        from = cut <= (int)id ? cut : from;
        until = cut > (int)id ? min(cut, until) : until;
      }
    }
    const long before = from ? sums[from - 1] : 0;
    const float begins = decay(sums[id] - before);
    *(device float4*)(factors + (((ulong)first + id) * 4u + head) * 4) = float4(
        begins * unit_k[id], begins * unit_q[id], decay(sums[until - 1] - sums[id]) * unit_k[id], decay(sums[until - 1] - before));
  }
}
