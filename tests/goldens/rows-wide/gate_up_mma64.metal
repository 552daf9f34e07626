// gate_up_mma64_e457e6a3
// small spec of a test
//
// Projection of many rows by matrix instructions that read both factors in threadgroup memory: out = silu(x @ gate.T) * (x @ up.T), weight = [gate; up].
// A threadgroup multiplies 64 rows of x by 96 rows of the weight, 64 columns a step, and asks for them 1 steps ahead.
// Four simdgroups multiply together: each has 16 rows of x, all four the same 48 rows of the weight.
// Where threadgroups read each other's memory, 2 of them share the columns of the same rows of the weight; elsewhere the
// first of them takes all columns.
// Grid: (22, ceil(tokens / 64)) threadgroups of 8 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [1024, 256] bf16
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
#ifndef MLXR_TILES
#define MLXR_TILES(name, count) MLXR_THREADGROUP(uint4, name, count)
#define MLXR_SHOW_TILES()
#define MLXR_ADD_PRODUCTS(type, tiles, sums, x, w, part, parts, lane) if (part < parts) add_products(tiles, sums, x, w, part, lane)
#define MLXR_AWAIT_PRODUCTS()
// Two numbers of a row.
inline uint pair_of(const threadgroup uint4* tile, uint row, uint vector, uint place) {
  return ((const threadgroup uint*)(tile + row * 8 + (vector ^ row % 8)))[place];
}
inline void add_products(uint tiles, thread float4* sums, const threadgroup uint4* x, const threadgroup uint4* w, uint part, uint lane) {
  const uint row = part * 16 + lane / 4, place = lane % 4;
  for (uint v = 0; v < 8; v += 2) {
    const uint4 a = uint4(pair_of(x, row, v, place), pair_of(x, row + 8, v, place), pair_of(x, row, v + 1, place), pair_of(x, row + 8, v + 1, place));
    for (uint n = 0; n < tiles; n++) {
      const uint of_w = n * 8 + lane / 4;
      sums[n] = mma_bf16(a, uint2(pair_of(w, of_w, v, place), pair_of(w, of_w, v + 1, place)), sums[n], lane);
    }
  }
}
#endif
inline float activate(float x) { return x / (1.0f + metal::precise::exp(-x)); }

// ---- kernel
[[kernel]] void gate_up_mma64_e457e6a3(
  const device bfloat16_t* x [[buffer(0)]],
  const device bfloat16_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
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
  const uint steps = (are_together ? (rank + 1) * 4u / 2u : 4u) - begin;
  const uint own = place_in_grid * 48u;
  // The last threadgroup's outputs end with the weight's; those before `own` are the previous threadgroup's.
  const uint first = min(own, 464u);
  const uint first_row = threadgroup_position_in_grid.y * 64u;
  const uint count = min(dims[0] - first_row, 64u);
  // A stage has, for each 64 columns, rows of x, and then rows of the weight, 8 vectors each. Vector v of row r lies where v ^ r % 8 would, so that eight rows
  // of a column lie in different banks.
  MLXR_TILES(staged, 2560);
  const uint copied = thread_index_in_threadgroup / 8, vector = thread_index_in_threadgroup % 8;
  threadgroup uint4* const to = staged + copied * 8 + (vector ^ copied % 8);
  const ulong from = (ulong)begin * 64u + vector * 8;
  const device bfloat16_t* const w = weight + (ulong)(first + copied) * 256u + from;
  const device bfloat16_t* of_x[2];
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(copied + i * 32u, count - 1);
    of_x[i] = x + (ulong)row * 256u + from;
  }
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      const uint row = i * 32u + (copied + i * 32u < 48u ? 0u : 464u);
      const device bfloat16_t* const of_row = w + (ulong)row * 256u + 0 * 64u;
      threadgroup uint4* const place = to + 0 * 1280u + 512u + i * 256u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(of_row));
    }
  }
  MLXR_AWAIT_INPUTS()
  if (0 < steps) {
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      threadgroup uint4* const place = to + 0 * 1280u + i * 256u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(of_x[i] + 0 * 64u));
    }
  }
  MLXR_END_COPIES();
  const uint four = simdgroup / 4, of_four = simdgroup % 4;
  float4 sums[6];
#pragma unroll
  for (uint n = 0; n < 6u; n++) {
    sums[n] = float4(0.0f);
  }
  uint slot = 0;
#pragma unroll 1
  for (uint step = 0; step < steps; step++) {
    MLXR_AWAIT_COPIES(0);
    MLXR_SHOW_TILES();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup uint4* const near = staged + slot * 1280u;
    MLXR_ADD_PRODUCTS(bf16, 6, sums, near, near + 512u + four * 384u, of_four, 4, lane);
    const uint ahead = step + 1u;
    if (ahead < steps) {
      const uint next = slot == 0 ? 1u : slot - 1;  // all have multiplied what was there
#pragma unroll
    for (uint i = 0; i < 3u; i++) {
      const uint row = i * 32u + (copied + i * 32u < 48u ? 0u : 464u);
      const device bfloat16_t* const of_row = w + (ulong)row * 256u + ahead * 64u;
      threadgroup uint4* const place = to + next * 1280u + 512u + i * 256u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(of_row));
    }
#pragma unroll
    for (uint i = 0; i < 2u; i++) {
      threadgroup uint4* const place = to + next * 1280u + i * 256u;
      MLXR_COPY_AHEAD(place, (const device uint4*)(of_x[i] + ahead * 64u));
    }
    }
    MLXR_END_COPIES();
    MLXR_AWAIT_PRODUCTS();
    slot = slot == 1u ? 0 : slot + 1;
  }
  // Sums in the same memory, 104 numbers apart, so that lanes write to different banks.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* const shares = (threadgroup float*)staged;
  {
    threadgroup float* const mine = shares + (of_four * 16 + group) * 104u + four * 48u + quad * 2;
#pragma unroll
    for (uint n = 0; n < 6u; n++) {
      *(threadgroup float2*)(mine + n * 8) = sums[n].xy;
      *(threadgroup float2*)(mine + 832u + n * 8) = sums[n].zw;
    }
  }
#ifdef MLXR_OF_RANK
  if (are_together) {
    // Each threadgroup adds up and finishes some rows of x.
    MLXR_MEET_TO_READ()
    threadgroup float4* const added = (threadgroup float4*)(shares + 6656u);
    for (uint i = thread_index_in_threadgroup; i < 768u; i += 256u) {
      const threadgroup float4* const at = (const threadgroup float4*)(shares + (i / 24u * 2u + rank) * 104u) + i % 24u;
      float4 parts[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        parts[r] = MLXR_VECTOR_OF_RANK(at, r);
      }
      float4 sum = parts[0];
#pragma unroll
      for (uint r = 1; r < 2u; r++) {
        sum = sum + parts[r];
      }
      added[i] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i0 = thread_index_in_threadgroup; i0 < 1536u; i0 += 1536u) {
#pragma unroll
    for (uint j = 0; j < 6u; j++) {
      const uint i = i0 + j * 256u;
      const uint row_of_x = i / 48u * 2u + rank, o = first + i % 48u;
      const threadgroup float* const of_row = (const threadgroup float*)added + i / 48u * 96u + i % 48u;
      float y = of_row[0];
      float up = of_row[48];
      if (row_of_x < count && o >= own) {
        const uint row = first_row + row_of_x;
        const ulong place = (ulong)row * 512u + o;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
  }
    MLXR_LEAVE()  // others read here until they have come
    return;
  }
#endif
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i0 = thread_index_in_threadgroup; i0 < 3072u; i0 += 2048u) {
#pragma unroll
    for (uint j = 0; j < 8u; j++) {
      const uint i = i0 + j * 256u;
      if (i >= 3072u) {
        break;
      }
      const uint row_of_x = i / 48u, o = first + i % 48u;
      const threadgroup float* const of_row = shares + i / 48u * 104u + i % 48u;
      float y = of_row[0];
      float up = of_row[48];
      if (row_of_x < count && o >= own) {
        const uint row = first_row + row_of_x;
        const ulong place = (ulong)row * 512u + o;
        y = activate(y) * up;
        out[place] = (bfloat16_t)y;
      }
    }
  }
}
