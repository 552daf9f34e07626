// delta_chunks_ca12700a
// small spec of a test
//
// The gated delta rule of a prompt, 64 tokens at a time, after delta_solve: with the state S before the chunk, and decays
// from there on in k and q, U = corrections (V - K S), out = Q S + answers U, and S = decay S + K^T U with decays up to the
// end in K. Two simdgroups each have 16 columns of a head's state in registers; the first makes U and keeps states, the second makes
// results. Where a state is to be kept within a chunk, the chunk is taken in parts that end there.
// Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", in its form by chunks.
// Grid: (4 heads x 3 parts of 16 columns, seqs) threadgroups of 2 simdgroups.
//   q  [tokens, 448] bf16: from column 0 on
//   k  [tokens, 448] bf16: from column 128 on
//   v  [tokens, 448] bf16: from column 256 on
//   corrections, answers  [tokens, 4 * 64] u32: of each head a row of the chunk's matrix: of 16 columns and a lane of
//     four two words with its pairs of the matrix instruction's second factor, and two with what they leave out
//   factors  [tokens, 4 * 4] f32: of each head what multiplies S^T k, S^T q, and k in the state after the tokens up to
//     the next state that is kept, or the chunk's end; and what multiplies the state//   query_start  [seqs + 1] i32: first token of each sequence
//   state_table  [1 + seqs * columns] i32: columns; the slot that is read; those that are written, the last token's first
//   layer        [8] u32: the layer's place in the store first
//   states       [slots, 1, 4, 64, 48] f32, written
//   token, token_out  [8] u32
//   out          [tokens, 192] bf16
#include <metal_stdlib>
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
// Without matrix instructions each product is long.
#ifdef MLXR_MMA
#define MLXR_UNROLL_PRODUCTS _Pragma("unroll")
#else
#define MLXR_UNROLL_PRODUCTS
#endif
// ---- kernel
[[kernel]] void delta_chunks_ca12700a(
  const device bfloat16_t* q [[buffer(0)]],
  const device bfloat16_t* k [[buffer(1)]],
  const device bfloat16_t* v [[buffer(2)]],
  const device int32_t* query_start [[buffer(3)]],
  const device int32_t* state_table [[buffer(4)]],
  const device uint32_t* corrections [[buffer(5)]],
  const device uint32_t* answers [[buffer(6)]],
  const device float* factors [[buffer(7)]],
  const device uint32_t* layer [[buffer(8)]],
  const device float* states [[buffer(9)]],
  const device uint32_t* token [[buffer(10)]],
  device bfloat16_t* out [[buffer(11)]],
  device uint32_t* token_out [[buffer(12)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  // What the simdgroups of states add to them, of two chunks: those of results read one while the next is written.
  MLXR_THREADGROUP(float4, shared, 512);
  device float* kept = const_cast<device float*>(states);
  const uint sequence = threadgroup_position_in_grid.y;
  const uint head = threadgroup_position_in_grid.x / 3u;
  const uint lane = thread_index_in_simdgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint part = simdgroup_index_in_threadgroup % 1u;
  const bool of_states = simdgroup_index_in_threadgroup < 1u;
  // A lane has columns `column` and `column` + 1 of the head's state, as rows group and group + 8 of what is multiplied.
  const uint column = (threadgroup_position_in_grid.x % 3u * 1u + part) * 16 + group * 2;
  const device bfloat16_t* of_k = k + 128u + (head / 2u) * 64u;
  const device bfloat16_t* of_v = v + 256u + head * 48u + column;
  const device bfloat16_t* read = quad * 8 + (of_states ? of_k : q + 0u + (head / 2u) * 64u);
  const device uint4* of_corrections = (const device uint4*)corrections + head * 16u + quad;
  const device uint4* of_answers = (const device uint4*)answers + head * 16u + quad;
  const device float* of_factors = factors + head * 4;
  const device float* own_factors = of_factors + (of_states ? 0u : 1u);
  const int columns = state_table[0];
  const device int* slots = state_table + 1 + (ulong)sequence * columns;
  // Tile 8 b + e has, in x and z, element 64 b + 8 quad + e of the keys, and in y and w element 32 further. These are the columns
  // of which group 2 quad, or 2 quad + 1, reads eight together, as their number `piece` of 64 elements.
  const uint piece = group % 2 * 4 + group / 2;
  const ulong element = ((ulong)layer[0] * 4u + head) * 3072u + quad * 384u + column;
  float4 state[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    state[i] = float4(0.0f);
    if (slots[0] >= 0) {
      const device float* at = kept + (ulong)slots[0] * 12288u + element + (i / 8 * 64 + i % 8) * 48u;
      const float2 upper = *(const device float2*)at, lower = *(const device float2*)(at + 1536);
      state[i] = float4(upper.x, lower.x, upper.y, lower.y);
    }
  }
  threadgroup float4* given = shared + part * 256u + lane;
  uint turn = 0;
  const int begin = query_start[sequence];
  const int end = query_start[sequence + 1];
  for (int from = begin; from < end;) {
    const int first = begin + (from - begin) / 64 * 64;
    int until = min(first + 64, end);
    for (int t = max(from, end - columns + 1); t < until; t++) {
      until = slots[end - t] >= 0 ? t + 1 : until;
    }
    // sums[n]: S^T k or S^T q of tokens 8 n + 2 quad (x, z) and the next one (y, w).
    float4 sums[8], added[8];
    float2 scales[8];
    uint2 values[8];
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const ulong t = (ulong)min(first + (int)(n * 8 + quad * 2), end - 1), u = (ulong)min(first + (int)(n * 8 + quad * 2 + 1), end - 1);
      values[n] = uint2(*(const device uint*)(of_v + t * 448u), *(const device uint*)(of_v + u * 448u)) & (of_states ? 0xffffffffu : 0u);
      scales[n] = float2(own_factors[t * 16u], own_factors[u * 16u]) * (of_states ? -1.0f : 1.0f);
      sums[n] = float4(0.0f);
    }
MLXR_UNROLL_PRODUCTS
    for (uint p = 0; p < 2u; p++) {
      uint4 rows[8];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        rows[n] = *(const device uint4*)(read + (ulong)min(first + (int)(n * 8 + group), end - 1) * 448u + p / 2 * 64 + p % 2 * 32);
      }
#pragma unroll
      for (uint s = 0; s < 2; s++) {
        uint4 upper, lower;
#pragma unroll
        for (uint h = 0; h < 2; h++) {
          const float4 even = state[p / 2 * 8 + s * 4 + h * 2], odd = state[p / 2 * 8 + s * 4 + h * 2 + 1];
          const uint2 x = p % 2 ? parts_of(even.y, odd.y) : parts_of(even.x, odd.x);
          const uint2 y = p % 2 ? parts_of(even.w, odd.w) : parts_of(even.z, odd.z);
          upper[2 * h] = x.x;
          upper[2 * h + 1] = y.x;
          lower[2 * h] = x.y;
          lower[2 * h + 1] = y.y;
        }
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[n] = mma_bf16(upper, s ? rows[n].zw : rows[n].xy, sums[n], lane);
        }
#pragma unroll
        for (uint n = 0; n < 8u; n++) {
          sums[n] = mma_bf16(lower, s ? rows[n].zw : rows[n].xy, sums[n], lane);
        }
      }
    }
    float2 ends[8];
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      const int at = first + (int)(n * 8 + quad * 2);
      const float2 x = floats_of(values[n].x), y = floats_of(values[n].y);
      sums[n] = float4(
          at >= from ? fma(scales[n].x, sums[n].x, x.x) : 0.0f, at + 1 >= from ? fma(scales[n].y, sums[n].y, y.x) : 0.0f,
          at >= from ? fma(scales[n].x, sums[n].z, x.y) : 0.0f, at + 1 >= from ? fma(scales[n].y, sums[n].w, y.y) : 0.0f);
      const float2 end_of = float2(of_factors[(ulong)min(first + (int)(n * 8 + quad * 2), end - 1) * 16u + 2], of_factors[(ulong)min(first + (int)(n * 8 + quad * 2 + 1), end - 1) * 16u + 2]);
      ends[n] = float2(at < until ? end_of.x : 0.0f, at + 1 < until ? end_of.y : 0.0f);
      added[n] = float4(0.0f);
    }
    if (of_states) {
MLXR_UNROLL_PRODUCTS
    for (uint m = 0; m < 4u; m++) {
      const uint2 p0 = parts_of(sums[2 * m].x, sums[2 * m].y), p1 = parts_of(sums[2 * m].z, sums[2 * m].w);
      const uint2 p2 = parts_of(sums[2 * m + 1].x, sums[2 * m + 1].y), p3 = parts_of(sums[2 * m + 1].z, sums[2 * m + 1].w);
      const uint4 upper = uint4(p0.x, p1.x, p2.x, p3.x), lower = uint4(p0.y, p1.y, p2.y, p3.y);
      uint4 second[8];
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        second[n] = of_corrections[(ulong)min(first + (int)(n * 8 + group), end - 1) * 64u + m * 4];
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        added[n] = mma_bf16(upper, second[n].xy, added[n], lane);
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        added[n] = mma_bf16(upper, second[n].zw, added[n], lane);
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        added[n] = mma_bf16(lower, second[n].xy, added[n], lane);
      }
    }
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        given[turn + n * 32] = added[n];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!of_states) {
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        added[n] = given[turn + n * 32];
      }
MLXR_UNROLL_PRODUCTS
    for (uint m = 0; m < 4u; m++) {
      const uint2 p0 = parts_of(added[2 * m].x, added[2 * m].y), p1 = parts_of(added[2 * m].z, added[2 * m].w);
      const uint2 p2 = parts_of(added[2 * m + 1].x, added[2 * m + 1].y), p3 = parts_of(added[2 * m + 1].z, added[2 * m + 1].w);
      const uint4 upper = uint4(p0.x, p1.x, p2.x, p3.x), lower = uint4(p0.y, p1.y, p2.y, p3.y);
      uint4 second[8];
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        second[n] = of_answers[(ulong)min(first + (int)(n * 8 + group), end - 1) * 64u + m * 4];
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        sums[n] = mma_bf16(upper, second[n].xy, sums[n], lane);
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        sums[n] = mma_bf16(upper, second[n].zw, sums[n], lane);
      }
#pragma unroll
      for (uint n = 2 * m; n < 8u; n++) {
        sums[n] = mma_bf16(lower, second[n].xy, sums[n], lane);
      }
    }
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        const int at = first + (int)(n * 8 + quad * 2);
        device bfloat16_t* to = out + (ulong)at * 192u + head * 48u + column;
        if (at >= from && at < until) {
          *(device uint*)to = pack_bf16(sums[n].x, sums[n].z);
        }
        if (at + 1 >= from && at + 1 < until) {
          *(device uint*)(to + 192u) = pack_bf16(sums[n].y, sums[n].w);
        }
      }
    }
    turn = 256u - turn;
    const float decay = of_factors[(ulong)(until - 1) * 16u + 3];
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      added[n] = added[n] * float4(ends[n].x, ends[n].y, ends[n].x, ends[n].y);
    }
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      state[i] = state[i] * decay;
    }
MLXR_UNROLL_PRODUCTS
    for (uint m = 0; m < 4u; m++) {
      const uint2 p0 = parts_of(added[2 * m].x, added[2 * m].y), p1 = parts_of(added[2 * m].z, added[2 * m].w);
      const uint2 p2 = parts_of(added[2 * m + 1].x, added[2 * m + 1].y), p3 = parts_of(added[2 * m + 1].z, added[2 * m + 1].w);
      const uint4 upper = uint4(p0.x, p1.x, p2.x, p3.x), lower = uint4(p0.y, p1.y, p2.y, p3.y);
#pragma unroll
      for (uint b = 0; b < 1u; b++) {
        uint4 keys[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          keys[j] = *(const device uint4*)(of_k + (ulong)min(first + (int)(m * 16 + j / 2 * 8 + quad * 2 + j % 2), end - 1) * 448u + b * 64 + piece * 8);
        }
        uint2 second[8];
#pragma unroll
        for (uint j = 0; j < 4; j++) {
          second[2 * j] = uint2(lower_halves(keys[0][j], keys[1][j]), lower_halves(keys[2][j], keys[3][j]));
          second[2 * j + 1] = uint2(upper_halves(keys[0][j], keys[1][j]), upper_halves(keys[2][j], keys[3][j]));
        }
#pragma unroll
        for (uint j = 0; j < 8; j++) {
          state[b * 8 + j] = mma_bf16(upper, second[j], state[b * 8 + j], lane);
        }
#pragma unroll
        for (uint j = 0; j < 8; j++) {
          state[b * 8 + j] = mma_bf16(lower, second[j], state[b * 8 + j], lane);
        }
      }
    }
    const int left = end - until + 1;
    if (of_states && left < columns && slots[left] >= 0) {
#pragma unroll
      for (uint i = 0; i < 8u; i++) {
        device float* to = kept + (ulong)slots[left] * 12288u + element + (i / 8 * 64 + i % 8) * 48u;
        *(device float2*)to = float2(state[i].x, state[i].z);
        *(device float2*)(to + 1536) = float2(state[i].y, state[i].w);
      }
    }
    from = until;
  }
  if (threadgroup_position_in_grid.x == 0 && sequence == 0 && thread_index_in_threadgroup < 8) {
    token_out[thread_index_in_threadgroup] = token[thread_index_in_threadgroup] + 1;
  }
}
