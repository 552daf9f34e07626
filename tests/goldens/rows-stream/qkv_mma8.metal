// qkv_mma8_21598c46
// small spec of a test
//
// Projection of several rows by matrix instructions, by blocks of quantised weights: out = x @ weight.T.
// A row of x is scaled by a power of two and rounded to f16, which loses nothing that matters of a 16-bit number. An element of the
// weight is code * scale + minimum in f16, of which the block's power of two (or its scale) is applied to the sums of 256 columns.
// A threadgroup prepares 8 rows of x, and multiplies 64 rows of the weight, 2 times. 1 simdgroup has the columns of 32 of
// them. Each copies what it multiplies to threadgroup memory, 256 columns at a time and 2 times ahead.
// Where threadgroups read each other's memory, 2 of them share the columns; elsewhere each takes all of some tiles.
// Grid: (8, ceil(tokens / 8)) threadgroups of 2 simdgroups.
//   x          [tokens, 512] bf16
//   weight     [119040] u8
//     rows 0 to 319: [320, 512] q4_k at byte 0
//     rows 320 to 383: [64, 512] q6_k at byte 92160
//   out        [tokens, 384] bf16
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
// The f16 numbers in the lower half of a pair, and in the upper.
inline float2 floats_of(uint pair) {
  return float2((float)as_type<half>((uint16_t)pair), (float)as_type<half>((uint16_t)(pair >> 16)));
}
#ifndef MLXR_MMA
inline float pair_product(uint a, uint b, float sum) {
  const float2 x = floats_of(a), y = floats_of(b);
  return sum + (x.x * y.x + x.y * y.y);
}
inline float4 mma_f16(uint4 a, uint2 b, float4 c, uint lane) {
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
#ifndef MLXR_MMA
inline float4 mma_f16(uint4 a, uint2 b, uint lane) { return mma_f16(a, b, float4(0.0f), lane); }
#endif
// Two floats rounded to f16, the first in the lower half.
inline uint f16_pair(float x, float y) {
  return (uint)as_type<uint16_t>((half)x) | (uint)as_type<uint16_t>((half)y) << 16;
}
// The bits of a small number are those of an f16 number, 2^-24 of it. Nibbles i and i + 4, odd ones 16 times as large.
inline void nibble_pairs(uint u, thread uint* p) {
  p[0] = u & 0x000f000fu;
  p[1] = u & 0x00f000f0u;
  p[2] = (u >> 8) & 0x000f000fu;
  p[3] = (u >> 8) & 0x00f000f0u;
}
// Bytes 0 and 2, then 1 and 3, of which `mask` tells what to take.
inline void byte_pairs(uint u, uint mask, thread uint* p) {
  p[0] = u & mask;
  p[1] = (u >> 8) & mask;
}
#ifndef MLXR_F16_PAIRS  // a host may compute both numbers at once
inline uint f16_fma(uint a, uint b, uint c) {
  const float2 x = floats_of(a), y = floats_of(b), z = floats_of(c);
  return f16_pair(x.x * y.x + z.x, x.y * y.y + z.y);
}
inline uint f16_times(uint a, uint b) {
  const float2 x = floats_of(a), y = floats_of(b);
  return f16_pair(x.x * y.x, x.y * y.y);
}
// A byte of a word twice, less what `less` has more than 1024.
inline uint f16_of_byte(uint word, uint byte, uint less) {
  const float number = (float)((word >> (8u * byte)) & 255u) + 1024.0f - floats_of(less).x;
  return f16_pair(number, number);
}
#endif
// A row of 256 columns in threadgroup memory: where all rows of the simdgroup are, which one it is, and bytes before it in its
// first vector.
struct NearRow {
  const threadgroup uint4* unit;
  uint row, begin;
};
inline float scales_q4_k(NearRow row, threadgroup uint4* table) {
  const uint4 head = row.unit[256u + row.row];
  const float2 factors = floats_of(head.x);
  const uint2 bits = as_type<uint2>(factors) & 0x7f800000u;
  const uint most = max(bits.x, bits.y);
  const float2 d = factors * as_type<float>(0x7f000000u - most);
  const uint even = f16_pair(d.x * 512.0f, d.x * 512.0f), odd = f16_pair(d.x * 32.0f, d.x * 32.0f);
  const uint minimum = f16_pair(d.y * -3.05175781e-05f, d.y * -3.05175781e-05f);
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const uint scales = i == 0 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u);
    const uint minima = i == 0 ? head.z & 0x3f3f3f3fu : ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u);
#pragma unroll
    for (uint j = 0; j < 2; j++) {
      const uint first = 2u * j, second = 2u * j + 1u;
      table[2 * i + j] = uint4(
          f16_times(f16_of_byte(scales, first, 0x64006400u), even), f16_times(f16_of_byte(scales, second, 0x64006400u), odd),
          f16_times(f16_of_byte(minima, first, 0x64006400u), minimum), f16_times(f16_of_byte(minima, second, 0x64006400u), minimum));
    }
  }
  return as_type<float>(most) * 32768.0f;
}
inline uint near_place_q4_k(uint row, uint vector) { return vector == 0u ? 256u + row : row * 8u + ((vector - 1u) ^ row % 2u * 4u); }
inline void place_of_q4_k(uint column, thread uint& step, thread uint& quad, thread uint& half_step) {
  step = column / 128u * 4u + column % 16u / 4u;
  quad = column / 64u % 2u * 2u + column % 32u / 16u;
  half_step = column / 32u % 2u;
}
struct Part_q4_k { uint4 q; uint4 scales; };
inline Part_q4_k part_q4_k(NearRow row, const threadgroup uint4* table, uint half_block, uint quad) {
  return Part_q4_k{row.unit[row.row * 8u + ((half_block * 4u + quad) ^ row.row % 2u * 4u)], table[half_block * 2u + quad / 2u]};
}
inline uint2 numbers_q4_k(Part_q4_k part, uint step, uint half_step) {
  const uint q = part.q[step], mask = half_step == 0 ? 0x000f000fu : 0x00f000f0u;
  const uint scale = half_step == 0 ? part.scales.x : part.scales.y, minimum = half_step == 0 ? part.scales.z : part.scales.w;
  return uint2(f16_fma(q & mask, scale, minimum), f16_fma((q >> 8) & mask, scale, minimum));
}
inline void ask_q4_k(
    threadgroup uint4* to, const device uint8_t* weight, const thread ulong* at, uint pass, uint unit, uint lane) {
  {
    const uint row = lane / 1u, vector = lane % 1u;
    const ulong more = (ulong)pass * 18432ul + unit * 144u + (ulong)(row * 288u) + vector * 16u;
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      const ulong begin = at[0] + more + j * 9216ul;
      MLXR_COPY_AHEAD(to + near_place_q4_k(row + j * 32u, vector), (const device uint4*)(weight + begin));
    }
  }
  {
    const uint row = lane / 8u, vector = 1u + lane % 8u;
    const ulong more = (ulong)pass * 18432ul + unit * 144u + (ulong)(row * 288u) + vector * 16u;
#pragma unroll
    for (uint j = 0; j < 8u; j++) {
      const ulong begin = at[0] + more + j * 1152ul;
      MLXR_COPY_AHEAD(to + near_place_q4_k(row + j * 4u, vector), (const device uint4*)(weight + begin));
    }
  }
}
inline void prepare_q4_k(
    const device bfloat16_t* x, threadgroup uint4* staged, threadgroup float* back, uint first_row, uint count,
    uint first_unit, uint simdgroup, uint lane) {
  // One row after the other: a kernel's instructions come from far when it begins, so few are better than many loads.
#pragma unroll 1
  for (uint i = 0; i < 4u; i++) {
    const uint r = simdgroup + i * 2u;
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(r, count - 1);
    const device uint4* from = (const device uint4*)(x + (ulong)row * 512u + first_unit * 256u) + lane;
    uint4 numbers[1];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      numbers[u] = from[u * 32u];
    }
    // The largest number is scaled to between 2^14 and 2^15. Without its sign, its exponent comes first.
    uint most = 0;
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        most = max(most, max(numbers[u][j] << 17, numbers[u][j] << 1));
      }
    }
    const uint exponent = clamp((int)(simd_max(most) >> 24), 15, 244);
    const float factor = as_type<float>((268u - exponent) << 23);
    if (lane == 0) {
      back[r] = as_type<float>((exponent - 14u) << 23);
    }
    uint step, quad, half_step, next_step, next_quad, next_half;
    place_of_q4_k(lane * 8u, step, quad, half_step);
    place_of_q4_k(lane * 8u + 4u, next_step, next_quad, next_half);
    threadgroup uint2* const to = (threadgroup uint2*)(staged + (step * 1u + r / 8) * 32u + r % 8 * 4 + quad) + half_step;
    threadgroup uint2* const next = (threadgroup uint2*)(staged + (next_step * 1u + r / 8) * 32u + r % 8 * 4 + next_quad) + next_half;
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      float2 pairs[4];
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        pairs[j] = as_type<float2>(uint2(numbers[u][j] << 16, numbers[u][j] & 0xffff0000u)) * factor;
      }
      to[u * 512u] = uint2(f16_pair(pairs[0].x, pairs[1].x), f16_pair(pairs[0].y, pairs[1].y));
      next[u * 512u] = uint2(f16_pair(pairs[2].x, pairs[3].x), f16_pair(pairs[2].y, pairs[3].y));
    }
  }
}
inline uint near_place_q6_k(uint row, uint vector) { return row * 15u + vector; }
inline void place_of_q6_k(uint column, thread uint& step, thread uint& quad, thread uint& half_step) {
  step = column / 32u;
  quad = column % 16u / 4u;
  half_step = column / 16u % 2u;
}
// The word at a byte, a multiple of 4, of a block that begins at a multiple of 2.
inline uint word_of_block(NearRow row, uint at) {
  const threadgroup uint* words = (const threadgroup uint*)(row.unit + row.row * 15u) + row.begin / 4u + at / 4u;
  return (uint)(((ulong)words[1] << 32 | (ulong)words[0]) >> (row.begin % 4u * 8u));
}
inline float scales_q6_k(NearRow row, threadgroup uint4* table) {
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    const uint bytes = word_of_block(row, 192u + 4u * i) ^ 0x80808080u;
    const uint unit = i % 2 == 0 ? 0x5c005c00u : 0x4c004c00u;  // 2^8; 2^4 where codes are 16 times as large
    table[i] = uint4(
        f16_times(f16_of_byte(bytes, 0, 0x64806480u), unit), f16_times(f16_of_byte(bytes, 1, 0x64806480u), unit),
        f16_times(f16_of_byte(bytes, 2, 0x64806480u), unit), f16_times(f16_of_byte(bytes, 3, 0x64806480u), unit));
  }
  return (float)((const threadgroup half*)(row.unit + row.row * 15u))[row.begin / 2u + 104u] * 65536.0f;
}
struct Part_q6_k { uint low[4]; uint high[2]; uint4 scales[2]; };
inline Part_q6_k part_q6_k(NearRow row, const threadgroup uint4* table, uint half_block, uint quad) {
  Part_q6_k part;
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    part.low[i] = word_of_block(row, half_block * 64u + i * 16u + quad * 4u);
  }
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    part.high[i] = word_of_block(row, 128u + half_block * 32u + i * 16u + quad * 4u);
    part.scales[i] = table[half_block * 2u + i];
  }
  return part;
}
// A step is a run. The codes of runs 2 and 3 are 16 times as large.
inline uint2 numbers_q6_k(Part_q6_k part, uint step, uint half_step) {
  const uint low = part.low[step % 2 * 2 + half_step], high = part.high[half_step];
  const uint scale = part.scales[step / 2][step % 2 * 2 + half_step];
  const uint shift = f16_times(scale, step < 2 ? 0x80208020u : 0x82008200u);
  const uint left = step % 2 == 0 ? high << 4 : high << 2, right = step % 2 == 0 ? high >> 4 : high >> 6;
  const uint of_low = step < 2 ? 0x000f000fu : 0x00f000f0u, of_high = step < 2 ? 0x00300030u : 0x03000300u;
  return uint2(
      f16_fma((low & of_low) | (left & of_high), scale, shift), f16_fma(((low >> 8) & of_low) | (right & of_high), scale, shift));
}
inline void ask_q6_k(
    threadgroup uint4* to, const device uint8_t* weight, const thread ulong* at, uint pass, uint unit, uint lane) {
  if (lane % 16u < 14u) {
    const uint row = lane / 16u, vector = lane % 16u;
    const ulong more = (ulong)pass * 26880ul + unit * 210u + (ulong)(row * 420u);
#pragma unroll
    for (uint j = 0; j < 16u; j++) {
      const ulong begin = at[0] + more + j * 840ul;
      MLXR_COPY_AHEAD(to + near_place_q6_k(row + j * 2u, vector), (const device uint4*)(weight + ((begin & ~15ul) + vector * 16u)));
    }
  }
}
inline void prepare_q6_k(
    const device bfloat16_t* x, threadgroup uint4* staged, threadgroup float* back, uint first_row, uint count,
    uint first_unit, uint simdgroup, uint lane) {
  // One row after the other: a kernel's instructions come from far when it begins, so few are better than many loads.
#pragma unroll 1
  for (uint i = 0; i < 4u; i++) {
    const uint r = simdgroup + i * 2u;
    // Rows past the end repeat the last one and are not stored.
    const uint row = first_row + min(r, count - 1);
    const device uint4* from = (const device uint4*)(x + (ulong)row * 512u + first_unit * 256u) + lane;
    uint4 numbers[1];
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      numbers[u] = from[u * 32u];
    }
    // The largest number is scaled to between 2^14 and 2^15. Without its sign, its exponent comes first.
    uint most = 0;
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        most = max(most, max(numbers[u][j] << 17, numbers[u][j] << 1));
      }
    }
    const uint exponent = clamp((int)(simd_max(most) >> 24), 15, 244);
    const float factor = as_type<float>((268u - exponent) << 23);
    if (lane == 0) {
      back[r] = as_type<float>((exponent - 14u) << 23);
    }
    uint step, quad, half_step, next_step, next_quad, next_half;
    place_of_q6_k(lane * 8u, step, quad, half_step);
    place_of_q6_k(lane * 8u + 4u, next_step, next_quad, next_half);
    threadgroup uint2* const to = (threadgroup uint2*)(staged + (step * 1u + r / 8) * 32u + r % 8 * 4 + quad) + half_step;
    threadgroup uint2* const next = (threadgroup uint2*)(staged + (next_step * 1u + r / 8) * 32u + r % 8 * 4 + next_quad) + next_half;
#pragma unroll
    for (uint u = 0; u < 1u; u++) {
      float2 pairs[4];
#pragma unroll
      for (uint j = 0; j < 4; j++) {
        pairs[j] = as_type<float2>(uint2(numbers[u][j] << 16, numbers[u][j] & 0xffff0000u)) * factor;
      }
      to[u * 512u] = uint2(f16_pair(pairs[0].x, pairs[1].x), f16_pair(pairs[0].y, pairs[1].y));
      next[u * 512u] = uint2(f16_pair(pairs[2].x, pairs[3].x), f16_pair(pairs[2].y, pairs[3].y));
    }
  }
}
// ---- kernel
[[kernel]] void qkv_mma8_21598c46(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device uint32_t* dims [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const uint share = simdgroup % 1u, of_rows = simdgroup / 1u;
  const uint place_in_grid = threadgroup_position_in_grid.x / 2u, place_of_group = threadgroup_position_in_grid.x % 2u;
#ifdef MLXR_OF_RANK
  const bool are_together = MLXR_ARE_TOGETHER();
#else
  const bool are_together = false;
#endif
  const uint first_row = threadgroup_position_in_grid.y * 8u;
  const uint count = min(dims[0] - first_row, 8u);
  // Of each 256 columns eight steps, by eight rows of x and lanes; a lane's vector has its numbers of two matrix instructions.
  MLXR_THREADGROUP(uint4, staged, 256);
  MLXR_THREADGROUP(uint4, ring, 1920);
  MLXR_THREADGROUP(uint4, tables, 320);
  MLXR_THREADGROUP(float, back, 8);
  MLXR_THREADGROUP(float, of_all, 1088);
  threadgroup uint4* const own_ring = ring + simdgroup * 960u;
  threadgroup uint4* const table = tables + simdgroup * 160u;
  threadgroup float* const shares = (threadgroup float*)tables;  // sums of a pass, when its scales are used no more
  // The outputs of the span, and where the simdgroup's rows of each plane begin; in a gated projection those of gates and of ups.
  uint first_out, end_out;
  ulong at[1];
  if (place_in_grid < 3u) {
    first_out = place_in_grid * 128u;
    end_out = 320u;
    const uint first = first_out + of_rows * 32u;
    at[0] = (ulong)((long)first) * 288u;
  }
  else {
    first_out = 320u + (place_in_grid - 3u) * 128u;
    end_out = 384u;
    const uint first = first_out + of_rows * 32u;
    at[0] = 92160ul + (ulong)((long)first - 320) * 420u;
  }
  if ((place_in_grid >= 0u && place_in_grid < 3u)) {
    const uint first = first_out + of_rows * 32u;
    const uint passes = min(2u, (end_out - first_out + 63u) / 64u);
    // Of the last tile some simdgroups may have no rows.
    const uint own_passes = first < end_out ? min(passes, (end_out - first + 63u) / 64u) : 0u;
    const uint ranks = are_together ? 1 : 2u;
    for (uint turn = are_together ? 0 : place_of_group * ranks; turn < (are_together ? 1 : passes * ranks); turn += turn % ranks + 1 < ranks ? 1 : (ranks - 1) * ranks + 1) {
      const uint rank = are_together ? place_of_group : turn % ranks;
      const uint begin_pass = are_together ? 0 : turn / ranks, end_pass = are_together ? passes : begin_pass + 1;
    const uint units_at = rank * 1u;
    const uint first_unit = units_at + 0u;
    const uint own = 1u;
    const uint steps = own_passes > begin_pass ? (min(own_passes, end_pass) - begin_pass) * own : 0u;
    uint asked = 0, asked_pass = begin_pass, asked_unit = 0;
#pragma unroll 1
    while (asked < 2u) {
      if (asked < steps) {
        ask_q4_k(own_ring + asked % 2u * 480u, weight, at, asked_pass, first_unit + asked_unit, lane);
        asked_unit++;
        if (asked_unit == own) {
          asked_unit = 0;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
    }
    MLXR_AWAIT_INPUTS()
    prepare_q4_k(x, staged, back, first_row, count, units_at, simdgroup, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint step = 0;
#pragma unroll 1
    for (uint pass = begin_pass; pass < end_pass + (are_together ? 1 : 0); pass++) {
      float4 sums[2][1];
#pragma unroll
      for (uint m = 0; m < 2; m++) {
#pragma unroll
        for (uint n = 0; n < 1u; n++) {
          sums[m][n] = float4(0.0f);
        }
      }
#pragma unroll 1
      for (uint unit = 0; unit < own && pass < own_passes; unit++, step++) {
        MLXR_AWAIT_COPIES(1);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const threadgroup uint4* const near = own_ring + step % 2u * 480u;
        const threadgroup uint4* const columns = staged + (first_unit - units_at + unit) * 256u + lane;
        {
          threadgroup uint4* const of_row = table + lane * 5u;
          const float of_block = scales_q4_k(NearRow{near, lane, 0u}, of_row);
          *(threadgroup float*)(of_row + 4) = of_block;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float4 c[2][1];
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
          for (uint n = 0; n < 1u; n++) {
            c[m][n] = float4(0.0f);
          }
        }
#pragma unroll
        for (uint half_block = 0; half_block < 2; half_block++) {
          Part_q4_k part[2][2];
#pragma unroll
          for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint odd = 0; odd < 2; odd++) {
              const uint r = m * 16 + odd * 8 + group;
              part[m][odd] = part_q4_k(NearRow{near, r, 0u}, table + r * 5u, half_block, quad);
            }
          }
#pragma unroll
          for (uint s = 0; s < 4; s++) {
            uint4 b[1];
#pragma unroll
            for (uint n = 0; n < 1u; n++) {
              b[n] = columns[((half_block * 4 + s) * 1u + n) * 32u];
            }
#pragma unroll
            for (uint half_step = 0; half_step < 2; half_step++) {
              uint4 a[2];
#pragma unroll
              for (uint m = 0; m < 2; m++) {
                const uint2 even = numbers_q4_k(part[m][0], s, half_step), odd = numbers_q4_k(part[m][1], s, half_step);
                a[m] = uint4(even.x, odd.x, even.y, odd.y);
              }
#pragma unroll
              for (uint n = 0; n < 1u; n++) {
#pragma unroll
                for (uint m = 0; m < 2; m++) {
                  c[m][n] = mma_f16(a[m], half_step == 0 ? b[n].xy : b[n].zw, c[m][n], lane);
                }
              }
            }
          }
        }
#pragma unroll
        for (uint m = 0; m < 2; m++) {
          const float even = *(const threadgroup float*)(table + (m * 16 + group) * 5 + 4), odd = *(const threadgroup float*)(table + (m * 16 + 8 + group) * 5 + 4);
#pragma unroll
          for (uint n = 0; n < 1u; n++) {
            sums[m][n] += c[m][n] * float4(even, even, odd, odd);
          }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
      if (asked < steps) {
        ask_q4_k(own_ring + asked % 2u * 480u, weight, at, asked_pass, first_unit + asked_unit, lane);
        asked_unit++;
        if (asked_unit == own) {
          asked_unit = 0;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
      }
#ifdef MLXR_OF_RANK
      // Where threadgroups read each other's memory, they finish a pass after the next one, so that nobody waits for them.
      if (are_together && pass > begin_pass) {
        MLXR_AWAIT_ALL()
        // Each threadgroup finishes some rows of x.
        for (uint i = thread_index_in_threadgroup; i < 256u; i += 64u) {
          const uint row_of_x = i / 64u * 2u + rank, in_tile = i % 64u;
        const threadgroup float* const of_row = of_all + ((pass - 1) % 2 * 8u + row_of_x) * 68u + in_tile / 32u * 32u + in_tile % 32u;
        float y = 0.0f;
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          y += MLXR_OF_RANK(of_row, r);
        }
          const uint o = first_out + (pass - 1) * 64u + in_tile;
          if (row_of_x < count && o < end_out) {
            const uint row = first_row + row_of_x;
            const ulong place = (ulong)row * 384u + o;
            out[place] = (bfloat16_t)y;
          }
        }
        if (pass == end_pass) {
          break;
        }
      }
#endif
#pragma unroll
      for (uint part = 0; part < 1u; part++) {
        // Two rows are 36 numbers apart, so that lanes write to different banks.
        threadgroup float* const mine = shares + simdgroup * 640u + quad * 72u + group;
#pragma unroll
        for (uint n = 0; n < 1u; n++) {
#pragma unroll
          for (uint m = 0; m < 2; m++) {
            threadgroup float* const to = mine + n * 288u + m * 16;
            const float4 sum = sums[m][part * 1u + n];
            to[0] = sum.x;
            to[36] = sum.y;
            to[8] = sum.z;
            to[44] = sum.w;
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index_in_threadgroup; i < 512u; i += 64u) {
          const uint row_of_x = part * 8u + i / 64u, r = i % 64u;
          const threadgroup float* const of_row = shares + r / 32u * 640u + i / 64u * 36u + r % 32u;
          float y = 0.0f;
#pragma unroll
          for (uint s = 0; s < 1u; s++) {
            y += of_row[s * 640u];
          }
          threadgroup float* const to = of_all + (pass % 2 * 8u + row_of_x) * 68u + r;
          *to = are_together || rank == 0 ? y * back[row_of_x] : *to + y * back[row_of_x];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
#ifdef MLXR_OF_RANK
      if (are_together) {
        MLXR_ARRIVE()
        continue;
      }
#endif
      for (uint i = thread_index_in_threadgroup; rank == 1u && i < 512u; i += 64u) {
        const uint row_of_x = i / 64u, in_tile = i % 64u;
        const threadgroup float* const of_row = of_all + (pass % 2 * 8u + row_of_x) * 68u + in_tile / 32u * 32u + in_tile % 32u;
        float y = 0.0f;
#pragma unroll
        for (uint r = 0; r < 1u; r++) {
          y += of_row[0];
        }
          const uint o = first_out + pass * 64u + in_tile;
          if (row_of_x < count && o < end_out) {
            const uint row = first_row + row_of_x;
            const ulong place = (ulong)row * 384u + o;
            out[place] = (bfloat16_t)y;
          }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

    }
#ifdef MLXR_OF_RANK
    if (are_together) {
      MLXR_MEET()  // nobody reads here any more
    }
#endif
    }
  }
  if ((place_in_grid >= 3u && place_in_grid < 4u)) {
    const uint first = first_out + of_rows * 32u;
    const uint passes = min(2u, (end_out - first_out + 63u) / 64u);
    // Of the last tile some simdgroups may have no rows.
    const uint own_passes = first < end_out ? min(passes, (end_out - first + 63u) / 64u) : 0u;
    const uint ranks = are_together ? 1 : 2u;
    for (uint turn = are_together ? 0 : place_of_group * ranks; turn < (are_together ? 1 : passes * ranks); turn += turn % ranks + 1 < ranks ? 1 : (ranks - 1) * ranks + 1) {
      const uint rank = are_together ? place_of_group : turn % ranks;
      const uint begin_pass = are_together ? 0 : turn / ranks, end_pass = are_together ? passes : begin_pass + 1;
    const uint units_at = rank * 1u;
    const uint first_unit = units_at + 0u;
    const uint own = 1u;
    const uint steps = own_passes > begin_pass ? (min(own_passes, end_pass) - begin_pass) * own : 0u;
    uint asked = 0, asked_pass = begin_pass, asked_unit = 0;
#pragma unroll 1
    while (asked < 2u) {
      if (asked < steps) {
        ask_q6_k(own_ring + asked % 2u * 480u, weight, at, asked_pass, first_unit + asked_unit, lane);
        asked_unit++;
        if (asked_unit == own) {
          asked_unit = 0;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
    }
    MLXR_AWAIT_INPUTS()
    prepare_q6_k(x, staged, back, first_row, count, units_at, simdgroup, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint step = 0;
#pragma unroll 1
    for (uint pass = begin_pass; pass < end_pass + (are_together ? 1 : 0); pass++) {
      float4 sums[2][1];
#pragma unroll
      for (uint m = 0; m < 2; m++) {
#pragma unroll
        for (uint n = 0; n < 1u; n++) {
          sums[m][n] = float4(0.0f);
        }
      }
#pragma unroll 1
      for (uint unit = 0; unit < own && pass < own_passes; unit++, step++) {
        MLXR_AWAIT_COPIES(1);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const threadgroup uint4* const near = own_ring + step % 2u * 480u;
        const threadgroup uint4* const columns = staged + (first_unit - units_at + unit) * 256u + lane;
        // Bytes before a row in its first vector.
        const uint before = pass * 0u + (first_unit + unit) * 210u;
        {
          threadgroup uint4* const of_row = table + lane * 5u;
          const float of_block = scales_q6_k(NearRow{near, lane, (before + (uint)at[0] + lane * 4u) % 16u}, of_row);
          *(threadgroup float*)(of_row + 4) = of_block;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float4 c[2][1];
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
          for (uint n = 0; n < 1u; n++) {
            c[m][n] = float4(0.0f);
          }
        }
#pragma unroll
        for (uint half_block = 0; half_block < 2; half_block++) {
          Part_q6_k part[2][2];
#pragma unroll
          for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint odd = 0; odd < 2; odd++) {
              const uint r = m * 16 + odd * 8 + group;
              part[m][odd] = part_q6_k(NearRow{near, r, (before + (uint)at[0] + r * 4u) % 16u}, table + r * 5u, half_block, quad);
            }
          }
#pragma unroll
          for (uint s = 0; s < 4; s++) {
            uint4 b[1];
#pragma unroll
            for (uint n = 0; n < 1u; n++) {
              b[n] = columns[((half_block * 4 + s) * 1u + n) * 32u];
            }
#pragma unroll
            for (uint half_step = 0; half_step < 2; half_step++) {
              uint4 a[2];
#pragma unroll
              for (uint m = 0; m < 2; m++) {
                const uint2 even = numbers_q6_k(part[m][0], s, half_step), odd = numbers_q6_k(part[m][1], s, half_step);
                a[m] = uint4(even.x, odd.x, even.y, odd.y);
              }
#pragma unroll
              for (uint n = 0; n < 1u; n++) {
#pragma unroll
                for (uint m = 0; m < 2; m++) {
                  c[m][n] = mma_f16(a[m], half_step == 0 ? b[n].xy : b[n].zw, c[m][n], lane);
                }
              }
            }
          }
        }
#pragma unroll
        for (uint m = 0; m < 2; m++) {
          const float even = *(const threadgroup float*)(table + (m * 16 + group) * 5 + 4), odd = *(const threadgroup float*)(table + (m * 16 + 8 + group) * 5 + 4);
#pragma unroll
          for (uint n = 0; n < 1u; n++) {
            sums[m][n] += c[m][n] * float4(even, even, odd, odd);
          }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
      if (asked < steps) {
        ask_q6_k(own_ring + asked % 2u * 480u, weight, at, asked_pass, first_unit + asked_unit, lane);
        asked_unit++;
        if (asked_unit == own) {
          asked_unit = 0;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
      }
#ifdef MLXR_OF_RANK
      // Where threadgroups read each other's memory, they finish a pass after the next one, so that nobody waits for them.
      if (are_together && pass > begin_pass) {
        MLXR_AWAIT_ALL()
        // Each threadgroup finishes some rows of x.
        for (uint i = thread_index_in_threadgroup; i < 256u; i += 64u) {
          const uint row_of_x = i / 64u * 2u + rank, in_tile = i % 64u;
        const threadgroup float* const of_row = of_all + ((pass - 1) % 2 * 8u + row_of_x) * 68u + in_tile / 32u * 32u + in_tile % 32u;
        float y = 0.0f;
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          y += MLXR_OF_RANK(of_row, r);
        }
          const uint o = first_out + (pass - 1) * 64u + in_tile;
          if (row_of_x < count && o < end_out) {
            const uint row = first_row + row_of_x;
            const ulong place = (ulong)row * 384u + o;
            out[place] = (bfloat16_t)y;
          }
        }
        if (pass == end_pass) {
          break;
        }
      }
#endif
#pragma unroll
      for (uint part = 0; part < 1u; part++) {
        // Two rows are 36 numbers apart, so that lanes write to different banks.
        threadgroup float* const mine = shares + simdgroup * 640u + quad * 72u + group;
#pragma unroll
        for (uint n = 0; n < 1u; n++) {
#pragma unroll
          for (uint m = 0; m < 2; m++) {
            threadgroup float* const to = mine + n * 288u + m * 16;
            const float4 sum = sums[m][part * 1u + n];
            to[0] = sum.x;
            to[36] = sum.y;
            to[8] = sum.z;
            to[44] = sum.w;
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index_in_threadgroup; i < 512u; i += 64u) {
          const uint row_of_x = part * 8u + i / 64u, r = i % 64u;
          const threadgroup float* const of_row = shares + r / 32u * 640u + i / 64u * 36u + r % 32u;
          float y = 0.0f;
#pragma unroll
          for (uint s = 0; s < 1u; s++) {
            y += of_row[s * 640u];
          }
          threadgroup float* const to = of_all + (pass % 2 * 8u + row_of_x) * 68u + r;
          *to = are_together || rank == 0 ? y * back[row_of_x] : *to + y * back[row_of_x];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
#ifdef MLXR_OF_RANK
      if (are_together) {
        MLXR_ARRIVE()
        continue;
      }
#endif
      for (uint i = thread_index_in_threadgroup; rank == 1u && i < 512u; i += 64u) {
        const uint row_of_x = i / 64u, in_tile = i % 64u;
        const threadgroup float* const of_row = of_all + (pass % 2 * 8u + row_of_x) * 68u + in_tile / 32u * 32u + in_tile % 32u;
        float y = 0.0f;
#pragma unroll
        for (uint r = 0; r < 1u; r++) {
          y += of_row[0];
        }
          const uint o = first_out + pass * 64u + in_tile;
          if (row_of_x < count && o < end_out) {
            const uint row = first_row + row_of_x;
            const ulong place = (ulong)row * 384u + o;
            out[place] = (bfloat16_t)y;
          }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);

    }
#ifdef MLXR_OF_RANK
    if (are_together) {
      MLXR_MEET()  // nobody reads here any more
    }
#endif
    }
  }
}
