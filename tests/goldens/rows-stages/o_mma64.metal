// o_mma64_9fb506d0
// small spec of a test
//
// Projection of several rows by matrix instructions, of which the factors come through threadgroup memory: out = x @ weight.T + residual.
// A threadgroup multiplies 32 rows of the weight by 64 rows of x, 64 columns a step, and asks for them 1 steps ahead.
// Simdgroup s takes 32 of the columns and 32 rows of the weight. A lane reads 16 bytes of rows g, g + 8 ... of both, from
// column 8 t on. That permutes the columns of both alike, which changes no product.
// Where threadgroups read each other's memory, 2 of them share the columns of the same rows of the weight; elsewhere the
// first of them takes all columns.
// Grid: (16, ceil(tokens / 64)) threadgroups of 2 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [256, 256] bf16
//   residual   [tokens, 256] bf16
//   out        [tokens, 256] bf16
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
// ---- kernel
[[kernel]] void o_mma64_9fb506d0(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device bfloat16_t* residual [[buffer(2)]],
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
  const uint own = place_in_grid * 32u;
  // The last threadgroup's outputs end with the weight's; those before `own` are the previous threadgroup's.
  const uint first = own;
  const uint first_row = threadgroup_position_in_grid.y * 64u;
  const uint count = min(dims[0] - first_row, 64u);
  // A stage has rows of the weight, then rows of x. Vectors of odd rows are put four further on, so that eight lanes read from
  // different banks.
  MLXR_THREADGROUP(uint4, staged, 1536);
  const uint copied = thread_index_in_threadgroup / 8u, vector = thread_index_in_threadgroup % 8u;
  threadgroup uint4* const to = staged + copied * 8u + (vector ^ copied % 2 * 4);
  const device bfloat16_t* const w = weight + (ulong)(first + copied) * 256u + begin * 64u + vector * 8;
  const device bfloat16_t* of_x[8];
#pragma unroll
  for (uint i = 0; i < 8u; i++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(copied + i * 8u, count - 1);
    of_x[i] = x + (ulong)row * 256u + begin * 64u + vector * 8;
  }
  const uint steps = end - begin;
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 4u; i++) {
      const ulong row = i * 8;
      MLXR_COPY_AHEAD(to + 0 * 768u + i * 64u, (const device uint4*)(w + row * 256u + 0 * 64u));
    }

  }
  MLXR_AWAIT_INPUTS()
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      MLXR_COPY_AHEAD(to + 0 * 768u + 256u + i * 64u, (const device uint4*)(of_x[i] + 0 * 64u));
    }
  }
  MLXR_END_COPIES();
  float4 sums[2][8];
#pragma unroll
  for (uint m = 0; m < 2u; m++) {
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      sums[m][n] = float4(0.0f);
    }
  }
  const uint share = simdgroup / 1u, row_group = simdgroup % 1u, first_tile = row_group * 2u;
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
      const ulong row = i * 8;
      MLXR_COPY_AHEAD(to + next * 768u + i * 64u, (const device uint4*)(w + row * 256u + ahead * 64u));
    }

#pragma unroll
    for (uint i = 0; i < 8u; i++) {
      MLXR_COPY_AHEAD(to + next * 768u + 256u + i * 64u, (const device uint4*)(of_x[i] + ahead * 64u));
    }
    }
    MLXR_END_COPIES();
    const threadgroup uint4* const near = of_lane + slot * 768u;
    uint4 b[8];
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
      b[n] = near[256u + n * 64u];
    }
#pragma unroll
    for (uint m = 0; m < 2u; m++) {
      const uint4 even = near[(first_tile + m) * 128u], odd = near[(first_tile + m) * 128u + 64u];
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        sums[m][n] = mma_bf16(uint4(even.x, odd.x, even.y, odd.y), b[n].xy, sums[m][n], lane);
      }
#pragma unroll
      for (uint n = 0; n < 8u; n++) {
        sums[m][n] = mma_bf16(uint4(even.z, odd.z, even.w, odd.w), b[n].zw, sums[m][n], lane);
      }
    }
    slot = slot == 1u ? 0 : slot + 1;
  }
  // Sums of the simdgroups that share columns, in the same memory: 64 rows of x each, 36 numbers apart, so that lanes
  // write to different banks.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* const shares = (threadgroup float*)staged;
  {
    threadgroup float* const mine = shares + share * 2304u + quad * 72u + first_tile * 16 + group;
#pragma unroll
    for (uint n = 0; n < 8u; n++) {
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
  for (uint i = thread_index_in_threadgroup; i < 2304u; i += 64u) {
    float sum = shares[i];
#pragma unroll
    for (uint s = 1; s < 2u; s++) {
      sum += shares[s * 2304u + i];
    }
    shares[i] = sum;
  }
  MLXR_MEET_TO_READ()
  // Each threadgroup finishes some rows of x.
#pragma unroll 4
  for (uint i = thread_index_in_threadgroup; i < 1024u; i += 64u) {
    const uint row_of_x = i / 32u * 2u + rank, o = first + i % 32u;
    const threadgroup float* const of_row = shares + row_of_x * 36u + i % 32u;
    float y = 0.0f;
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      y += MLXR_OF_RANK(of_row, r);
    }
    if (row_of_x < count) {
      const uint row = first_row + row_of_x;
      const ulong place = (ulong)row * 256u + o;
      y += (float)residual[place];
      out[place] = (bfloat16_t)y;
    }
  }
  MLXR_LEAVE()  // others read here until they have come
  return;
  }
#endif
  for (uint i = thread_index_in_threadgroup; i < 2048u; i += 64u) {
    const uint row_of_x = i / 32u, o = first + i % 32u;
    const threadgroup float* const of_row = shares + row_of_x * 36u + i % 32u;
    float y = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      y += of_row[s * 2304u];
    }
    if (row_of_x < count) {
      const uint row = first_row + row_of_x;
      const ulong place = (ulong)row * 256u + o;
      y += (float)residual[place];
      out[place] = (bfloat16_t)y;
    }
  }
}
