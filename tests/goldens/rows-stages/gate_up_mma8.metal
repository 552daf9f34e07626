// gate_up_mma8_ddbc2ed1
// small spec of a test
//
// Projection of several rows by matrix instructions, of which the factors come through threadgroup memory: out = silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T), weight = [gate; up].
// A threadgroup multiplies 32 rows of the weight by 8 rows of x, 64 columns a step, and asks for them 1 steps ahead.
// Simdgroup s takes 32 of the columns and 32 rows of the weight. A lane reads 16 bytes of rows g, g + 8 ... of both, from
// column 8 t on. That permutes the columns of both alike, which changes no product.
// x is multiplied by the norm's weight on the way, and sums by 1 / rms.
// Where threadgroups read each other's memory, 2 of them share the columns of the same rows of the weight; elsewhere the
// first of them takes all columns.
// Grid: (64, ceil(tokens / 8)) threadgroups of 2 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [1024, 256] bf16
//   norm       [256] bf16
//   out        [tokens, 512] bf16
//   dims       [8] u32: tokens, seqs, rows, tiles
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#ifndef MLXR_AWAIT_INPUTS  // a decode step of one kernel waits there for what other threadgroups make
#define MLXR_AWAIT_INPUTS()
#endif
#ifndef MLXR_COPY_AHEAD  // a host may copy 16 bytes while other work goes on, and wait until at most `left` groups of copies are not done
#define MLXR_COPY_AHEAD(to, from) *(to) = *(from)
#define MLXR_END_COPIES()
#define MLXR_AWAIT_COPIES(left)
#endif
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
#ifndef MLXR_TIMES_PAIR
inline uint times_pair(uint a, uint b) {
  const float2 x = floats_of(a), y = floats_of(b);
  return (uint)as_type<uint16_t>((bfloat)(x.x * y.x)) | (uint)as_type<uint16_t>((bfloat)(x.y * y.y)) << 16;
}
#endif
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

// ---- kernel
[[kernel]] void gate_up_mma8_ddbc2ed1(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device bfloat16_t* norm [[buffer(2)]],
  const device uint32_t* dims [[buffer(3)]],
  device bfloat16_t* out [[buffer(4)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint place_in_grid = threadgroup_position_in_grid.x / 2u, rank = threadgroup_position_in_grid.x % 2u;
#ifdef MLXR_OF_RANK
  const bool are_together = MLXR_ARE_TOGETHER();
#else
  const bool are_together = false;
#endif
  if (!are_together && rank != 0) {
    return;
  }
  const uint begin = are_together ? rank * 4u / 2u : 0;
  const uint end = are_together ? (rank + 1) * 4u / 2u : 4u;
  const uint own = place_in_grid * 16u;
  // The last threadgroup's outputs end with the weight's; those before `own` are the previous threadgroup's.
  const uint first = own;
  const uint first_row = threadgroup_position_in_grid.y * 8u;
  const uint count = min(dims[0] - first_row, 8u);
  // A stage has rows of the weight, then rows of x, then the norm's weight. Vectors of odd rows are put four further on, so that eight lanes read from
  // different banks.
  MLXR_THREADGROUP(uint4, staged, 656);
  const uint copied = thread_index_in_threadgroup / 8u, vector = thread_index_in_threadgroup % 8u;
  threadgroup uint4* const to = staged + copied * 8u + (vector ^ copied % 2 * 4);
  const device bfloat16_t* const w = weight + (ulong)(first + copied) * 256u + begin * 64u + vector * 8;
  const device bfloat16_t* of_x[1];
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(copied + i * 8u, count - 1);
    of_x[i] = x + (ulong)row * 256u + begin * 64u + vector * 8;
  }
  const device bfloat16_t* const n = norm + begin * 64u + vector * 8;
  const uint steps = end - begin;
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const ulong row = i % 2 * 8 + i / 2 * 512ul;
      MLXR_COPY_AHEAD(to + 0 * 328u + i * 64u, (const device uint4*)(w + row * 256u + 0 * 64u));
    }
    if (copied == 0) {
      MLXR_COPY_AHEAD(to + 0 * 328u + 320u, (const device uint4*)(n + 0 * 64u));
    }

  }
  MLXR_AWAIT_INPUTS()
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      MLXR_COPY_AHEAD(to + 0 * 328u + 256u + i * 64u, (const device uint4*)(of_x[i] + 0 * 64u));
    }
  }
  MLXR_END_COPIES();
  float4 sums[2][1];
#pragma unroll
  for (uint m = 0; m < 2u; m++) {
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  const uint share = simdgroup / 1u, row_group = simdgroup % 1u, first_tile = row_group * 2u;
  MLXR_THREADGROUP(float, squares_of, 16);
  MLXR_THREADGROUP(float, scales, 8);
  float squares[1];
#pragma unroll
  for (uint n = 0; n < 1u; n++) {
    squares[n] = 0.0f;
  }
  const threadgroup uint4* const of_norm = staged + 320u + share * 4u + quad;
  const threadgroup uint4* const of_lane = staged + group * 8u + ((share * 4 + quad) ^ group % 2 * 4);
  uint slot = 0;
#pragma unroll 1
  for (uint step = 0; step < steps; step++) {
    MLXR_AWAIT_COPIES(0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint ahead = step + 1u;
    if (ahead < steps) {
      const uint next = slot == 0 ? 1u : slot - 1;  // all have multiplied what was there
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const ulong row = i % 2 * 8 + i / 2 * 512ul;
      MLXR_COPY_AHEAD(to + next * 328u + i * 64u, (const device uint4*)(w + row * 256u + ahead * 64u));
    }
    if (copied == 0) {
      MLXR_COPY_AHEAD(to + next * 328u + 320u, (const device uint4*)(n + ahead * 64u));
    }

#pragma unroll
    for (uint i = 0; i < 1u; i++) {
      MLXR_COPY_AHEAD(to + next * 328u + 256u + i * 64u, (const device uint4*)(of_x[i] + ahead * 64u));
    }
    }
    MLXR_END_COPIES();
    const threadgroup uint4* const near = of_lane + slot * 328u;
    uint4 b[1];
    const uint4 normed = of_norm[slot * 328u];
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
      b[n] = near[256u + n * 64u];
      if (true) {
        const float2 p = floats_of(b[n].x), q = floats_of(b[n].y), r = floats_of(b[n].z), s = floats_of(b[n].w);
        squares[n / 1u] += p.x * p.x + p.y * p.y + q.x * q.x + q.y * q.y + (r.x * r.x + r.y * r.y + s.x * s.x + s.y * s.y);
      }
      b[n] = uint4(times_pair(b[n].x, normed.x), times_pair(b[n].y, normed.y), times_pair(b[n].z, normed.z), times_pair(b[n].w, normed.w));
    }
#pragma unroll
    for (uint m = 0; m < 2u; m++) {
      const uint4 even = near[(first_tile + m) * 128u], odd = near[(first_tile + m) * 128u + 64u];
#pragma unroll
      for (uint n = 0; n < 1u; n++) {
        sums[m][n] = mma_bf16(uint4(even.x, odd.x, even.y, odd.y), b[n].xy, sums[m][n], lane);
      }
#pragma unroll
      for (uint n = 0; n < 1u; n++) {
        sums[m][n] = mma_bf16(uint4(even.z, odd.z, even.w, odd.w), b[n].zw, sums[m][n], lane);
      }
    }
    slot = slot == 1u ? 0 : slot + 1;
  }
  // Sums of the simdgroups that share columns, in the same memory: 8 rows of x each, 36 numbers apart, so that lanes
  // write to different banks.
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint n = 0; n < 1u; n++) {
    float sum = squares[n] + simd_shuffle_xor(squares[n], 1);
    sum += simd_shuffle_xor(sum, 2);
    const uint row = (n * 1u + row_group) * 8 + group;
    if (quad == 0) {
      squares_of[share * 8u + row] = sum;
    }
  }
  threadgroup float* const shares = (threadgroup float*)staged;
  {
    threadgroup float* const mine = shares + share * 288u + quad * 72u + first_tile * 16 + group;
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
#pragma unroll
      for (uint m = 0; m < 2u; m++) {
        threadgroup float* const at = mine + n * 288u + m * 16;
        at[0] = sums[m][n].x;
        at[36] = sums[m][n].y;
        at[8] = sums[m][n].z;
        at[44] = sums[m][n].w;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef MLXR_OF_RANK
  if (are_together) {
  for (uint i = thread_index_in_threadgroup; i < 288u; i += 64u) {
    float sum = shares[i];
#pragma unroll
    for (uint s = 1; s < 2u; s++) {
      sum += shares[s * 288u + i];
    }
    shares[i] = sum;
  }
  for (uint row = thread_index_in_threadgroup; row < 8u; row += 64u) {
    float sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      sum += squares_of[s * 8u + row];
    }
    scales[row] = sum;
  }
  MLXR_MEET_TO_READ()
  for (uint i = thread_index_in_threadgroup; i < 4u; i += 64u) {
    const uint row = i * 2u + rank;
    float sum = 0.0f;
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      sum += MLXR_OF_RANK(scales + row, r);
    }
    squares_of[i] = metal::precise::rsqrt(sum * 0.00390625f + 9.99999975e-06f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Each threadgroup finishes some rows of x.
#pragma unroll 4
  for (uint i = thread_index_in_threadgroup; i < 64u; i += 64u) {
    const uint row_of_x = i / 16u * 2u + rank, o = first + i % 16u;
    const threadgroup float* const of_row = shares + row_of_x * 36u + i % 16u;
    float y = 0.0f;
    float up = 0.0f;
    const float scale = squares_of[i / 16u];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      y += MLXR_OF_RANK(of_row, r);
      up += MLXR_OF_RANK(of_row + 16, r);
    }
    if (row_of_x < count) {
      const uint row = first_row + row_of_x;
      const ulong place = (ulong)row * 512u + o;
      y *= scale;
      up *= scale;
      y = activate(y) * up;
      out[place] = (bfloat16_t)y;
    }
  }
  MLXR_LEAVE()  // others read here until they have come
  return;
  }
#endif
  for (uint row = thread_index_in_threadgroup; row < 8u; row += 64u) {
    float sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      sum += squares_of[s * 8u + row];
    }
    scales[row] = metal::precise::rsqrt(sum * 0.00390625f + 9.99999975e-06f);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < 128u; i += 64u) {
    const uint row_of_x = i / 16u, o = first + i % 16u;
    const threadgroup float* const of_row = shares + row_of_x * 36u + i % 16u;
    float y = 0.0f;
    float up = 0.0f;
    const float scale = scales[row_of_x];
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      y += of_row[s * 288u];
      up += of_row[s * 288u + 16u];
    }
    if (row_of_x < count) {
      const uint row = first_row + row_of_x;
      const ulong place = (ulong)row * 512u + o;
      y *= scale;
      up *= scale;
      y = activate(y) * up;
      out[place] = (bfloat16_t)y;
    }
  }
}
