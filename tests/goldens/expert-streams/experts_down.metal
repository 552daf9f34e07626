// experts_down_94d2b6c1
// small spec of a test
//
// out = residual + sum of weights * (x @ weight[expert].T), over the 4 experts that a token's router chose.
// As the one-row projection whose weight comes through threadgroup memory, with the columns of all these experts.
// Grid: (16, tokens) threadgroups of 2 simdgroups.
//   x          [tokens, 4 * 256] bf16
//   weight     [4300800] u8
//     rows 0 to 20479: [20480, 256] q6_k at byte 0
//   experts    [tokens, 4] i32
//   weights    [tokens, 4] f32
//   residual   [tokens, 512] bf16
//   out        [tokens, 512] bf16
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
#ifndef MLXR_SUM  // a host's compiler may need telling not to fuse it with the product x
#define MLXR_SUM(x, y) ((x) + (y))
#endif
inline uint load_u32_1(const device uint8_t* p) {
  return (uint)p[0] | (uint)p[1] << 8 | (uint)p[2] << 16 | (uint)p[3] << 24;
}
inline uint load_u32_2(const device uint8_t* p) {
  const device uint16_t* halves = (const device uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint load_u32(const device uint8_t* p) { return *(const device uint*)p; }
inline uint2 load_u32x2(const device uint8_t* p) { return *(const device uint2*)p; }
inline uint4 load_u32x4(const device uint8_t* p) { return *(const device uint4*)p; }
inline float load_half(const device uint8_t* p) { return (float)*(const device half*)p; }
inline float half_of(uint bits) { return (float)as_type<half>((uint16_t)bits); }
inline float4 unsigned_bytes(uint u) { return float4(as_type<uchar4>(u)); }
inline float4 signed_bytes(uint u) { return float4(as_type<char4>(u)); }
// Bits 0 to 3 of x as bit 0 of each byte.
inline uint spread_bits(uint x) { return ((x & 15u) * 0x00204081u) & 0x01010101u; }
struct Row_q6_k {
  const device uint8_t* blocks;
};
struct Raw_q6_k { uint low[2]; uint high; float scale; float scales[4]; };
inline Raw_q6_k raw_q6_k(Row_q6_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 210u;
  const uint half_block = piece % 16u / 8u;
  const uint at = piece % 8u * 4u;
  const device char* scales = (const device char*)(block + 192u + half_block * 8u + at / 16u);
  Raw_q6_k raw;
  raw.low[0] = load_u32_2(block + half_block * 64u + at);
  raw.low[1] = load_u32_2(block + half_block * 64u + at + 32u);
  raw.high = load_u32_2(block + 128u + half_block * 32u + at);
  raw.scale = load_half(block + 208);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.scales[i] = (float)scales[2u * i];
  }
  return raw;
}
inline void codes_q6_k(Raw_q6_k raw, uint run, thread float4* c) {
  const uint low = ((run & 1u ? raw.low[1] : raw.low[0]) >> (run & 2u) * 2u) & 0x0f0f0f0fu;
  c[0] = unsigned_bytes(low | ((raw.high >> (2u * run)) & 0x03030303u) << 4) - 32.0f;
}
inline float2 scale_q6_k(Raw_q6_k raw, uint run) {
  const float a = run & 1u ? raw.scales[1] : raw.scales[0];
  const float b = run & 1u ? raw.scales[3] : raw.scales[2];
  return float2(raw.scale * (run & 2u ? b : a), 0.0f);
}
// A run's elements.
inline void values_q6_k(Raw_q6_k raw, uint run, thread float4* c) {
  codes_q6_k(raw, run, c);
  const float2 scale = scale_q6_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 1u; i++) {
    c[i] *= scale.x;
  }
}


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
inline uint near_u32_2(const threadgroup uint8_t* p) {
  const threadgroup uint16_t* halves = (const threadgroup uint16_t*)p;
  return (uint)halves[0] | (uint)halves[1] << 16;
}
inline uint4 near_u32x4(const threadgroup uint8_t* p) { return *(const threadgroup uint4*)p; }
inline float near_half(const threadgroup uint8_t* p) { return (float)*(const threadgroup half*)p; }
struct Wide_q6_k { uint low[4]; uint high[2]; float scale; float scales[4]; };
inline Wide_q6_k wide_q6_k(Row_q6_k row, uint pair) {
  const device uint8_t* block = row.blocks + pair / 8u * 210u;
  const uint half_block = pair % 8u / 4u;
  const uint at = pair % 4u * 8u;
  const device char* scales = (const device char*)(block + 192u + half_block * 8u + at / 16u);
  Wide_q6_k raw;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    raw.low[i] = load_u32_2(block + half_block * 64u + at + 4u * i);
    raw.low[2 + i] = load_u32_2(block + half_block * 64u + at + 32u + 4u * i);
    raw.high[i] = load_u32_2(block + 128u + half_block * 32u + at + 4u * i);
  }
  raw.scale = load_half(block + 208);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.scales[i] = (float)scales[2u * i];
  }
  return raw;
}
// High nibbles stay where they are, so that the codes of runs 2 and 3 are 16 times as large.
inline void pairs_q6_k(Wide_q6_k raw, uint half_pair, uint run, thread uint* p) {
  const uint low = raw.low[(run & 1u) * 2u + half_pair], high = raw.high[half_pair];
  const uint left = run % 2u == 0 ? high << 4 : high << 2, right = run % 2u == 0 ? high >> 4 : high >> 6;
  const uint of_low = run < 2u ? 0x000f000fu : 0x00f000f0u, of_high = run < 2u ? 0x00300030u : 0x03000300u;
  p[0] = (low & of_low) | (left & of_high);
  p[1] = ((low >> 8) & of_low) | (right & of_high);
}
inline float2 wide_scale_q6_k(Wide_q6_k raw, uint run) { return float2(raw.scales[run], 0.0f); }
inline float2 wide_factor_q6_k(Wide_q6_k raw) { return float2(raw.scale, 0.0f); }
struct Near_q6_k {
  const threadgroup uint8_t* blocks;
};
inline Wide_q6_k wide_q6_k(Near_q6_k row, uint pair) {
  const threadgroup uint8_t* block = row.blocks + pair / 8u * 210u;
  const uint half_block = pair % 8u / 4u;
  const uint at = pair % 4u * 8u;
  const threadgroup char* scales = (const threadgroup char*)(block + 192u + half_block * 8u + at / 16u);
  Wide_q6_k raw;
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    raw.low[i] = near_u32_2(block + half_block * 64u + at + 4u * i);
    raw.low[2 + i] = near_u32_2(block + half_block * 64u + at + 32u + 4u * i);
    raw.high[i] = near_u32_2(block + 128u + half_block * 32u + at + 4u * i);
  }
  raw.scale = near_half(block + 208);
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    raw.scales[i] = (float)scales[2u * i];
  }
  return raw;
}
inline uint stage_q6_k(
    const thread uint2* of_x,
    float weight_of_x,
    uint lane, threadgroup uint4* stage, threadgroup float* total) {
  float4 of_piece[4];
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    of_piece[j] = widen_bf16(of_x[j]);
    of_piece[j] *= weight_of_x;
  }
  // The largest of the 512 numbers is scaled to between 2^14 and 2^15.
  uint most = 0;
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    const uint4 bits = as_type<uint4>(of_piece[j]) & 0x7fffffffu;
    most = max(most, max(max(bits.x, bits.y), max(bits.z, bits.w)));
  }
  const uint exponent = clamp((int)(simd_max(most) >> 23), 15, 244);
  const float factor = as_type<float>((268u - exponent) << 23);
#pragma unroll
  for (uint j = 0; j < 4; j++) {
    of_piece[j] *= factor;
  }
  {
    const float sum = sum4(of_piece[0]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[1]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[16u + lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[2]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[32u + lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  {
    const float sum = sum4(of_piece[3]);
    const float of_pair = sum + simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) {
      total[48u + lane / 2] = 1.90734863e-06f * of_pair;
    }
  }
  uint upper[8];
  uint lower[8];
  {
    const float2 v = float2(of_piece[0].x, of_piece[0].z);
    upper[0] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[0]);
    lower[0] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[0].y, of_piece[0].w);
    upper[1] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[1]);
    lower[1] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[1].x, of_piece[1].z);
    upper[2] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[2]);
    lower[2] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[1].y, of_piece[1].w);
    upper[3] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[3]);
    lower[3] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].x, of_piece[2].z) * 0.0625f;
    upper[4] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[4]);
    lower[4] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[2].y, of_piece[2].w) * 0.0625f;
    upper[5] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[5]);
    lower[5] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[3].x, of_piece[3].z) * 0.0625f;
    upper[6] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[6]);
    lower[6] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  {
    const float2 v = float2(of_piece[3].y, of_piece[3].w) * 0.0625f;
    upper[7] = f16_pair(v.x, v.y);
    const float2 kept = floats_of(upper[7]);
    lower[7] = f16_pair(v.x - kept.x, v.y - kept.y);
  }
  threadgroup uint4* to = stage + (lane / 8 * 4 + lane % 2 * 2) * 9u + lane / 2 % 4 * 2;
  to[0] = uint4(upper[0], upper[1], upper[2], upper[3]);
  to[9] = uint4(upper[4], upper[5], upper[6], upper[7]);
  to[1] = uint4(lower[0], lower[1], lower[2], lower[3]);
  to[10] = uint4(lower[4], lower[5], lower[6], lower[7]);
  return exponent;
}
// Copies a unit: of each row two blocks. `at` is where those of the first row are, of the first gate and the first up.
inline void ask(threadgroup uint4* to, const device uint8_t* weight, const thread ulong* at, uint lane) {
#pragma unroll
  for (uint j = 0; j < 14u; j++) {
    const uint i = lane + 32u * j;
    const uint r = i / 28u, in_row = i % 28u;
    const uint block = in_row / 14u;
    const ulong begin = (block ? at[1] : at[0]) + (ulong)(r * 210u);
    MLXR_COPY_AHEAD(to + i, (const device uint4*)(weight + (begin & ~15ul) + in_row % 14u * 16u));
  }
}
// ---- kernel
[[kernel]] void experts_down_94d2b6c1(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* experts [[buffer(2)]],
  const device float* weights [[buffer(3)]],
  const device bfloat16_t* residual [[buffer(4)]],
  device bfloat16_t* out [[buffer(5)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint share = simdgroup_index_in_threadgroup % 1u;
  const uint token = threadgroup_position_in_grid.y;
  const uint first_choice = token * 4u;
  const device bfloat16_t* input = x + (ulong)first_choice * 256u;
  MLXR_THREADGROUP(uint4, ring, 896);
  // Of each 512 columns of x 16 rows: four steps, by halves of a pair and halves of a piece; a row has a step's four pairs and ends
  // with zeros, for lanes whose columns belong to another pair. And the sums of each pair's runs, and the exponent.
  MLXR_THREADGROUP(uint4, staged, 288);
  MLXR_THREADGROUP(float, totals, 128);
  MLXR_THREADGROUP(uint, exponents, 2);
  MLXR_THREADGROUP(float, shares, 32);
  threadgroup uint4* own = ring + simdgroup_index_in_threadgroup * 448u;
  const uint group = lane / 4, pair_of_step = lane % 4;
  // Column g of x belongs to pair g / 2.
  const bool holds = group / 2 == pair_of_step;
  const threadgroup uint4* of_lane = staged + (holds ? pair_of_step * 2 + group % 2 : 8u);
#pragma unroll
  for (uint unit = simdgroup_index_in_threadgroup; unit < 2u; unit += 2u) {
    if (lane < 16) {
      staged[unit * 144u + lane * 9u + 8u] = uint4(0u);
    }
  }
  const uint of_all = threadgroup_position_in_grid.x * 32u;
  const uint end = 512u;
  const uint first = of_all + simdgroup_index_in_threadgroup / 1u * 16u;
  const uint steps = first < end ? (2u - share) / 1u : 0u;
  const ulong first_block = (ulong)first * 210u;
  MLXR_AWAIT_INPUTS()
  const uint row_of_slot = (uint)experts[first_choice + min(lane, 3u)] * 512u;
  // The residual of a thread's output, which is asked for with x, so that the last sums wait for no memory.
  const float of_residual = (float)residual[(ulong)token * 512u + min(of_all + thread_index_in_threadgroup, end - 1)];
    float weights_of[1];
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      const uint block = (simdgroup_index_in_threadgroup + j * 2u) * 2u + lane / 16u;
      weights_of[j] = weights[first_choice + min(block / 1u, 3u)];
    }
    uint2 numbers[1][4];
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      thread uint2* of_x = numbers[j];
      const uint piece = min(simdgroup_index_in_threadgroup + j * 2u, 1u) * 32u + lane;
#pragma unroll
      for (uint run = 0; run < 4u; run++) {
        const uint column = piece / 8u * 128u + piece % 8u * 4u + run * 32u;
#pragma unroll
        for (uint i = 0; i < 1u; i++) {
          of_x[run * 1u + i] = ((const device uint2*)(input + column))[i];
        }
      }
    }
  uint asked = 0, asked_pass = 0, asked_unit = share;
#pragma unroll 1
  while (asked < 1u) {
      if (asked < steps) {
        ulong at[2];
        {
          const uint block = asked_unit * 2u + 0u;
          at[0] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }
        {
          const uint block = asked_unit * 2u + 1u;
          at[1] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }

        ask(own + asked % 1u * 448u, weight, at, lane);
        asked_unit += 1u;
        if (asked_unit >= 2u) {
          asked_unit = share;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
  }
  {
#pragma unroll
    for (uint j = 0; j < 1u; j++) {
      const uint unit = simdgroup_index_in_threadgroup + j * 2u;
      threadgroup uint4* stage = staged + unit * 144u;
      threadgroup float* total = totals + unit * 64u;
      const uint exponent = stage_q6_k(numbers[j], weights_of[j], lane, stage, total);
      if (lane == 0) {
        exponents[unit] = exponent;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float sums[2];
#pragma unroll
    for (uint r = 0; r < 2u; r++) {
      sums[r] = 0.0f;
    }
    uint pass = 0, unit = share;
    const uint next = holds ? 9u : 0u;
#pragma unroll 1
    for (uint step = 0; step < steps; step++) {
      MLXR_AWAIT_COPIES(0);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const threadgroup uint8_t* near = (const threadgroup uint8_t*)(own + step % 1u * 448u);
      const threadgroup uint4* columns = of_lane + unit * 144u;
      const threadgroup float* total = totals + unit * 64u;
      ulong at[2];
        {
          const uint block = unit * 2u + 0u;
          at[0] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }
        {
          const uint block = unit * 2u + 1u;
          at[1] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }

      Near_q6_k w[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        w[r] = Near_q6_k{near + (r * 8 + group) * 448u};
      }
      Wide_q6_k raw[1][2];
      float of_block[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        of_block[r] = 0.0f;
      }
      const uint i = 0;
#pragma unroll
      for (uint take = 0; take < 4; take++) {
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const uint begin = (uint)(at[take / 2] & 15ul) + (r * 8 + group) * 2u;
          raw[0][r] = wide_q6_k(Near_q6_k{w[r].blocks + take / 2 * 224u + begin % 16u}, take % 2 * 4 + pair_of_step);
        }
        float of_take[2];
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          of_take[r] = 0.0f;
        }
#pragma unroll
        for (uint s = 0; s < 1; s++) {
          float4 c[4][1];
#pragma unroll
          for (uint half_pair = 0; half_pair < 2; half_pair++) {
            uint2 b[4];
#pragma unroll
            for (uint j = 0; j < 2; j++) {
              const uint4 part = columns[((take * 1 + s) * 4 + half_pair * 2 + j) * next];
              b[2 * j] = part.xy;
              b[2 * j + 1] = part.zw;
            }
#pragma unroll
            for (uint run = 0; run < 4u; run++) {
#pragma unroll
              for (uint r = 0; r < 1u; r++) {
                uint even[2], odd[2];
                pairs_q6_k(raw[i][2 * r], s * 2 + half_pair, run, even);
                pairs_q6_k(raw[i][2 * r + 1], s * 2 + half_pair, run, odd);
#pragma unroll
                for (uint m = 0; m < 1u; m++) {
                  const uint4 a = uint4(even[2 * m], odd[2 * m], even[2 * m + 1], odd[2 * m + 1]);
                  const uint2 x = b[run * 1u + m];
                  c[run][r] = half_pair + m == 0 ? mma_f16(a, x, lane) : mma_f16(a, x, c[run][r], lane);
                }
              }
            }
          }
#pragma unroll
          for (uint run = 0; run < 4u; run++) {
            const float more = total[run * 16u + (take * 4 + pair_of_step) * 1 + s];
#pragma unroll
            for (uint r = 0; r < 2u; r++) {
              const float2 both = r % 2 == 0 ? c[run][r / 2].xy : c[run][r / 2].zw;
              const float2 scale = wide_scale_q6_k(raw[i][r], s * 4 + run);
              of_take[r] += (both.x + both.y - more) * scale.x;
            }
          }
        }
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float2 factor = wide_factor_q6_k(raw[i][r]);
          of_block[r] += of_take[r] * factor.x;
        }
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (asked < steps) {
        ulong at[2];
        {
          const uint block = asked_unit * 2u + 0u;
          at[0] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }
        {
          const uint block = asked_unit * 2u + 1u;
          at[1] = first_block + (ulong)simd_shuffle(row_of_slot, (ushort)(block / 1u)) * 210u + block % 1u * 210u;
        }

        ask(own + asked % 1u * 448u, weight, at, lane);
        asked_unit += 1u;
        if (asked_unit >= 2u) {
          asked_unit = share;
          asked_pass++;
        }
      }
      asked++;
      MLXR_END_COPIES();
      const float back = as_type<float>((exponents[unit] + 10u) << 23);
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        sums[r] += of_block[r] * back;
      }
      unit += 1u;
      if (unit >= 2u) {
#pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const float pair = sums[r] + simd_shuffle_xor(sums[r], 1);
          const float sum = pair + simd_shuffle_xor(pair, 2);
          if (pair_of_step == 0) {
            shares[(pass * 2u + simdgroup_index_in_threadgroup) * 16u + r * 8 + group] = sum;
          }
          sums[r] = 0.0f;
        }
        unit = share;
        pass++;
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint at = thread_index_in_threadgroup; at < 32u && of_all + at < end; at += 64u) {
    const uint o = of_all + at;
    const uint in_tile = at % 32u;
    const uint of_rows = ((at / 32u) * 2u + in_tile / 16u * 1u) * 16u + in_tile % 16u;
    float y = 0.0f;
#pragma unroll
    for (uint s = 0; s < 1u; s++) {
      const uint at_sum = of_rows + s * 16u;
      y += shares[at_sum];
    }
    const ulong place = (ulong)token * 512u + o;
    y += of_residual;
    out[place] = (bfloat16_t)y;
  }}
