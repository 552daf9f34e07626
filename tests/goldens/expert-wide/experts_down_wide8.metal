// experts_down_wide8_faec5eac
// small spec of a test
//
// Products of a tile of 8 choices of an expert by matrix instructions of four simdgroups: out = x @ weight.T.
// x is one f16 number, in the order in which steps multiply columns; `backs` scales its rows back. An element of the weight is code *
// scale + minimum in f16, and sums of 256 columns are scaled. A simdgroup has 16 rows of the weight, 2 times, and copies one
// block of each at a time, 1 ahead; all of a threadgroup copy 256 columns of x, one block ahead.
// Grid: (4, tiles) threadgroups of 4 simdgroups.
//   x          [tokens * 3, 256] f16
//   backs      [choices] f32
//   weight     [4300800] u8
//     rows 0 to 20479: [20480, 256] q6_k at byte 0
//   order      [tokens * 3] i32: choices by expert
//   tiles      [tiles, 3] i32: expert, its first row in the order, and the row after its last
//   weights    [tokens * 3] f32
//   out        [tokens * 3, 512] bf16
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
#define MLXR_RESIDENT 4
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
      sums[n] = mma_f16(a, uint2(pair_of(w, of_w, v, place), pair_of(w, of_w, v + 1, place)), sums[n], lane);
    }
  }
}
#endif
#ifndef MLXR_ADD_TO_PRODUCTS
#define MLXR_NO_PRODUCTS(tiles, sums) for (uint n = 0; n < tiles; n++) sums[n] = float4(0.0f)
#define MLXR_BEGIN_PRODUCTS()
#define MLXR_END_PRODUCTS()
#define MLXR_AWAIT_BUT_LAST_PRODUCTS()
#define MLXR_ADD_TO_PRODUCTS(type, tiles, sums, first, a, x, at, step, lane) add_to_products(tiles, sums, a, x + (at), step, lane)
inline void add_to_products(uint tiles, thread float4* sums, uint4 a, const threadgroup uint4* x, uint step, uint lane) {
  for (uint n = 0; n < tiles; n++) {
    const uint row = n * 8 + lane / 4, place = lane % 4;
    sums[n] = mma_f16(a, uint2(pair_of(x, row, 2 * step, place), pair_of(x, row, 2 * step + 1, place)), sums[n], lane);
  }
}
#endif
// A row of 256 columns in threadgroup memory: where all rows of the simdgroup are, which one it is, and bytes before it in its
// first vector.
struct NearRow {
  const threadgroup uint4* unit;
  uint row, begin;
};
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
inline float scales_q6_k(NearRow row, threadgroup uint4* table, uint part) {
  {
    const uint i = part;
    const uint bytes = word_of_block(row, 192u + 4u * i) ^ 0x80808080u;
    const uint unit = i % 2 == 0 ? 0x5c005c00u : 0x4c004c00u;  // 2^8; 2^4 where codes are 16 times as large
    table[part % 2] = uint4(
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
    part.scales[i] = table[i];
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
// ---- kernel
[[kernel]] void experts_down_wide8_faec5eac(
  const device float16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* order [[buffer(2)]],
  const device int32_t* tiles [[buffer(3)]],
  const device float* weights [[buffer(4)]],
  const device float* backs [[buffer(5)]],
  device bfloat16_t* out [[buffer(6)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup, simdgroup = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, quad = lane % 4;
  const device int* of_tile = tiles + threadgroup_position_in_grid.y * 3u;
  const uint first_row = (uint)of_tile[1];
  const uint end_row = (uint)of_tile[2];
  if (first_row >= end_row) {
    return;
  }
  const uint count = end_row - first_row;
  const uint expert_row = (uint)of_tile[0] * 512u;
  // A stage has, for each 64 columns, rows of x, 8 vectors each. Vector v of row r lies where v ^ r % 8 would, so that eight rows of a column
  // lie in different banks.
  MLXR_TILES(staged, 512);
  MLXR_THREADGROUP(uint4, ring, 1920);
  MLXR_THREADGROUP(uint4, tables, 128);
  MLXR_THREADGROUP(float, back, 8);
  MLXR_THREADGROUP(int, choices, 8);
  MLXR_THREADGROUP(float, factors, 8);
  threadgroup uint4* const own = ring + simdgroup * 480u;
  threadgroup uint4* const table = tables + simdgroup * 32u;
  const uint first = threadgroup_position_in_grid.x * 128u + simdgroup * 16u;
  // Rows of x that are copied.
  uint of_x[2];
#pragma unroll
  for (uint j = 0; j < 2u; j++) {
    const uint row = first_row + min(simdgroup + j * 4u, count - 1);
    of_x[j] = (uint)order[row] * 256u + lane * 8u;
  }
  threadgroup uint4* const to_x = staged + lane / 8 * 64u;
  // Blocks of two rows are copied side by side. Rows of the second half follow those of the first, as a simdgroup counts them.
  const uint copied_row = lane / 16, copied_vector = lane % 16;
  const uint first_place = near_place_q6_k(copied_row, copied_vector), next_place = near_place_q6_k(copied_row + 2u, copied_vector) - first_place;
  const ulong at_row = (ulong)(expert_row + first) * 210u;
  const ulong at = at_row + copied_row * 210u;
  const uint of_row = (uint)at_row & 15u;
  uint asked = 0, asked_pass = 0, asked_unit = 0, asked_slot = 0, next_of_x = 0;
    if (0u < 2u) {
      threadgroup uint4* const x_to = to_x + 0u % 2u * 256u;
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        if (simdgroup + j * 4u < count) {
          MLXR_COPY_AHEAD(x_to + (simdgroup + j * 4u) * 8u + (lane % 8 ^ (simdgroup + j * 4u) % 8u), (const device uint4*)(x + (of_x[j] + next_of_x * 256u)));
        }
      }
      next_of_x = next_of_x == 0u ? 0 : next_of_x + 1;
    }
    if (asked < 2u) {
      const ulong more = (ulong)(asked_pass * 13440u + asked_unit * 210u);
      threadgroup uint4* const own_to = own + asked_slot * 240u;
      if (copied_vector < 14u) {
#pragma unroll
        for (uint j = 0; j < 8; j++) {
          const ulong begin = at + more + j * 420u;
          MLXR_COPY_AHEAD(own_to + (first_place + j * next_place), (const device uint4*)(weight + ((begin & ~15ul) + copied_vector * 16u)));
        }
      }
      asked_unit++;
      if (asked_unit == 1u) {
        asked_unit = 0;
        asked_pass++;
      }
      asked_slot = asked_slot == 1u ? 0 : asked_slot + 1;
    }
    asked++;
    MLXR_END_COPIES();
  for (uint i = thread_index_in_threadgroup; i < 8u; i += 128u) {
    const uint choice = (uint)order[first_row + min(i, count - 1)];
    choices[i] = (int)choice;
    back[i] = backs[choice];
    factors[i] = weights[choice];
  }
  // Other rows are multiplied, too.
  for (uint i = count * 32u + thread_index_in_threadgroup; i < 256u; i += 128u) {
#pragma unroll
    for (uint stage = 0; stage < 2; stage++) {
      staged[stage * 256u + i % 32u / 8u * 64u + i / 32u * 8u + i % 8u] = uint4(0u);
    }
  }
  float4 sums[1];
#pragma unroll
  for (uint n = 0; n < 1u; n++) {
    sums[n] = float4(0.0f);
  }
  uint pass = 0, unit = 0, slot = 0;
#pragma unroll 1
  for (uint step = 0; step < 2u; step++) {
    MLXR_AWAIT_COPIES(0);
    MLXR_SHOW_TILES();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if ((step + 1) < 2u) {
      threadgroup uint4* const x_to = to_x + (step + 1) % 2u * 256u;
#pragma unroll
      for (uint j = 0; j < 2u; j++) {
        if (simdgroup + j * 4u < count) {
          MLXR_COPY_AHEAD(x_to + (simdgroup + j * 4u) * 8u + (lane % 8 ^ (simdgroup + j * 4u) % 8u), (const device uint4*)(x + (of_x[j] + next_of_x * 256u)));
        }
      }
      next_of_x = next_of_x == 0u ? 0 : next_of_x + 1;
    }
    if (asked < 2u) {
      const ulong more = (ulong)(asked_pass * 13440u + asked_unit * 210u);
      threadgroup uint4* const own_to = own + asked_slot * 240u;
      if (copied_vector < 14u) {
#pragma unroll
        for (uint j = 0; j < 8; j++) {
          const ulong begin = at + more + j * 420u;
          MLXR_COPY_AHEAD(own_to + (first_place + j * next_place), (const device uint4*)(weight + ((begin & ~15ul) + copied_vector * 16u)));
        }
      }
      asked_unit++;
      if (asked_unit == 1u) {
        asked_unit = 0;
        asked_pass++;
      }
      asked_slot = asked_slot == 1u ? 0 : asked_slot + 1;
    }
    asked++;
    MLXR_END_COPIES();
    const threadgroup uint4* const near = own + slot * 240u;
    // Two lanes decode the scales of a row, half a block's at a time.
    const NearRow of_scales = NearRow{near, lane / 2, ((of_row + pass * 0u + unit * 2u + (lane / 2) * 2u) & 15u)};
    const float of_unit = scales_q6_k(of_scales, table + lane / 2 * 2u, lane % 2u);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const float factor_even = simd_shuffle(of_unit, group * 2), factor_odd = simd_shuffle(of_unit, group * 2 + 16);
    const NearRow even_row = NearRow{near, group, ((of_row + pass * 0u + unit * 2u + group * 2u) & 15u)}, odd_row = NearRow{near, group + 8, ((of_row + pass * 0u + unit * 2u + (group + 8) * 2u) & 15u)};
    const threadgroup uint4* const of_step = staged + step % 2u * 256u;
    float4 of_block[1];
    uint4 a[2][2];
    MLXR_NO_PRODUCTS(1, of_block);
#pragma unroll
    for (uint half_block = 0; half_block < 2; half_block++) {
      if (half_block == 1) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        scales_q6_k(of_scales, table + lane / 2 * 2u, 2u + lane % 2u);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
      const Part_q6_k even = part_q6_k(even_row, table + group * 2u, half_block, quad);
      const Part_q6_k odd = part_q6_k(odd_row, table + (group + 8) * 2u, half_block, quad);
#pragma unroll
      for (uint batch = 0; batch < 4u; batch++) {
        const uint set = batch % 2;
        if (half_block * 4u + batch > 1) {
          MLXR_AWAIT_BUT_LAST_PRODUCTS();
        }
#pragma unroll
        for (uint i = 0; i < 2u; i++) {
          const uint s = batch * 2u + i;
          const uint2 e = numbers_q6_k(even, s / 2, s % 2), o = numbers_q6_k(odd, s / 2, s % 2);
          a[set][i] = uint4(e.x, o.x, e.y, o.y);
        }
        MLXR_BEGIN_PRODUCTS();
#pragma unroll
        for (uint i = 0; i < 2u; i++) {
          const uint s = half_block * 8u + batch * 2u + i;
          MLXR_ADD_TO_PRODUCTS(f16, 1, of_block, s == 0, a[set][i], of_step, s / 4u * 64u, s % 4u, lane);
        }
        MLXR_END_PRODUCTS();
      }
    }
    MLXR_AWAIT_PRODUCTS();
#pragma unroll
    for (uint n = 0; n < 1u; n++) {
      sums[n] += of_block[n] * float4(factor_even, factor_even, factor_odd, factor_odd);
    }
    slot = slot == 1u ? 0 : slot + 1;
    unit++;
    if (unit == 1u) {
#pragma unroll
      for (uint n = 0; n < 1u; n++) {
        const float4 all = sums[n];
        sums[n] = float4(0.0f);
        const float2 backs_of = ((const threadgroup float2*)back)[n * 4u + quad];
#pragma unroll
        for (uint j = 0; j < 2; j++) {
          const uint row = first_row + n * 8u + quad * 2u + j;
          if (row < end_row) {
          {
            const uint o = first + pass * 64u + group;
            float y = (j ? all.y : all.x) * backs_of[j];
            const uint choice = (uint)choices[row - first_row];
            const ulong place = (ulong)choice * 512u + o;
            y *= factors[row - first_row];
            out[place] = (bfloat16_t)y;
          }
          {
            const uint o = first + pass * 64u + group + 8;
            float y = (j ? all.w : all.z) * backs_of[j];
            const uint choice = (uint)choices[row - first_row];
            const ulong place = (ulong)choice * 512u + o;
            y *= factors[row - first_row];
            out[place] = (bfloat16_t)y;
          }
          }
        }
      }
      unit = 0;
      pass++;
    }
  }
}
