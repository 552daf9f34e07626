// o_02fc3e41
// small spec of a test
//
// Projection of one row by matrix instructions of 8-bit numbers: out = x @ weight.T + residual.
// x is an integer of four digits times a power of two for each 128 columns (a unit). A tile has 16 rows of the weight; a
// simdgroup multiplies every 2th unit of 4 of them. Lane 4 g + t holds a quarter of a unit of rows g and g + 8.
// Grid: 8 threadgroups of 2 simdgroups.
//   x          [tokens, 256] bf16
//   weight     [73728] u8
//     rows 0 to 511: [512, 256] q4_k at byte 0
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
struct PairScales { float scale; float minimum; uint scales; uint minima; };
// Those of sub-blocks 2 * pair and 2 * pair + 1, in the two lowest bytes of `scales` and `minima`.
inline PairScales pair_scales(uint4 head, uint pair) {
  const uint shift = 16u * (pair & 1u);
  const uint scales = pair < 2u ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u);
  const uint minima = pair < 2u ? head.z & 0x3f3f3f3fu : ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u);
  return PairScales{half_of(head.x & 0xffffu), half_of(head.x >> 16), scales >> shift, minima >> shift};
}
inline float2 scale_of(PairScales s, uint run) {
  const float scale = (float)((s.scales >> (8u * run)) & 255u);
  const float minimum = (float)((s.minima >> (8u * run)) & 255u);
  return float2(s.scale * scale, -(s.minimum * minimum));
}
struct Row_q4_k {
  const device uint8_t* blocks;
};
struct Raw_q4_k { uint2 q; PairScales scales; };
inline Raw_q4_k raw_q4_k(Row_q4_k row, uint piece) {
  const device uint8_t* block = row.blocks + piece / 16u * 144u;
  return Raw_q4_k{load_u32x2(block + 16u + piece % 16u * 8u), pair_scales(load_u32x4(block), piece % 16u / 4u)};
}
inline void codes_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    c[i] = unsigned_bytes((raw.q[i] >> (4u * run)) & 0x0f0f0f0fu);
  }
}
inline float2 scale_q4_k(Raw_q4_k raw, uint run) { return scale_of(raw.scales, run); }
// A run's elements, each rounded twice, as where the format is defined.
inline void values_q4_k(Raw_q4_k raw, uint run, thread float4* c) {
  codes_q4_k(raw, run, c);
  const float2 scale = scale_q4_k(raw, run);
#pragma unroll
  for (uint i = 0; i < 2u; i++) {
    c[i] *= scale.x;
    c[i] = MLXR_SUM(c[i], scale.y);
  }
}


#ifndef MLXR_MMA_U8
// c + A B for A [16, 32] of unsigned bytes and B [32, 8] of signed ones; ../README.md says which lane holds what.
inline int sum_of_bytes(uint a, uint b, int sum) {
  const int4 x = int4(as_type<uchar4>(a)), y = int4(as_type<char4>(b));
  return sum + (x.x * y.x + x.y * y.y) + (x.z * y.z + x.w * y.w);
}
inline int4 mma_u8(uint4 a, uint2 b, int4 c, uint lane) {
  for (uint t = 0; t < 4; t++) {
    const uint row = lane / 4 * 4 + t, column = lane % 4 * 8 + t;
    const uint4 w = uint4(simd_shuffle(a.x, row), simd_shuffle(a.y, row), simd_shuffle(a.z, row), simd_shuffle(a.w, row));
    const uint2 even = uint2(simd_shuffle(b.x, column), simd_shuffle(b.y, column));
    const uint2 odd = uint2(simd_shuffle(b.x, column + 4), simd_shuffle(b.y, column + 4));
    c.x = sum_of_bytes(w.z, even.y, sum_of_bytes(w.x, even.x, c.x));
    c.y = sum_of_bytes(w.z, odd.y, sum_of_bytes(w.x, odd.x, c.y));
    c.z = sum_of_bytes(w.w, even.y, sum_of_bytes(w.y, even.x, c.z));
    c.w = sum_of_bytes(w.w, odd.y, sum_of_bytes(w.y, odd.x, c.w));
  }
  return c;
}
#endif
// Four integers' digits, the highest first: a word has one of each, and all are signed bytes.
inline void digits_of(float4 x, thread uint* digits) {
  const uint4 v = (uint4(as_type<uint>((int)x.x), as_type<uint>((int)x.y), as_type<uint>((int)x.z), as_type<uint>((int)x.w)) + 0x00808080u) ^ 0x00808080u;
  const uint2 even = (uint2(v.x, v.z) & 0x00ff00ffu) | ((uint2(v.y, v.w) & 0x00ff00ffu) << 8);
  const uint2 odd = ((uint2(v.x, v.z) >> 8) & 0x00ff00ffu) | (uint2(v.y, v.w) & 0xff00ff00u);
  digits[0] = odd.x >> 16 | (odd.y & 0xffff0000u);
  digits[1] = even.x >> 16 | (even.y & 0xffff0000u);
  digits[2] = (odd.x & 0xffffu) | odd.y << 16;
  digits[3] = (even.x & 0xffffu) | even.y << 16;
}
// An integer's sum begins with bits of which a float is that sum, plus 1.5 * 2^23.
inline float2 sum_of_digits(int4 c) {
  const float2 upper = float2(as_type<float>(c.x), as_type<float>(c.z)) - 12582912.0f;
  const float2 lower = float2(as_type<float>(c.y), as_type<float>(c.w)) - 12582912.0f;
  return upper * 256.0f + lower;
}
struct Near_q4_k {
  const threadgroup uint8_t* blocks;
};
// Lane t's quarter of a half block: 16 bytes, of which the low nibbles belong to sub-block t / 2 * 2 of it, and the high ones to the next.
struct Held_q4_k { const threadgroup uint4* q; float4 scales; };
inline Held_q4_k held_q4_k(Near_q4_k row, uint half_block, uint t) {
  const threadgroup uint8_t* block = row.blocks + half_block / 2u * 144u;
  const uint4 head = *(const threadgroup uint4*)block;
  const threadgroup uint4* q = (const threadgroup uint4*)(block + 16u + half_block % 2u * 64u + t * 16u);
  const bool second = half_block % 2u != 0u;
  const uint scales = second ? (head.w & 0x0f0f0f0fu) | ((head.y >> 2) & 0x30303030u) : head.y & 0x3f3f3f3fu;
  const uint minima = second ? ((head.w >> 4) & 0x0f0f0f0fu) | ((head.z >> 2) & 0x30303030u) : head.z & 0x3f3f3f3fu;
  const uint shift = t / 2u * 16u;
  const uint all = ((scales >> shift) & 0xffffu) | ((minima >> shift) & 0xffffu) << 16;
  const float scale = half_of(head.x & 0xffffu), minimum = -half_of(head.x >> 16);
  return Held_q4_k{q, unsigned_bytes(all) * float4(scale, scale * 0.0625f, minimum, minimum)};
}
// Words 2 i and 2 i + 1 of a lane's codes. High nibbles stay where they are, 16 times as large.
inline uint2 codes_of_q4_k(Held_q4_k held, uint i) {
  const uint4 q = *held.q;
  return (i % 2 == 0 ? q.xy : q.zw) & (i < 2 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
}
inline float unit_q4_k(Held_q4_k held, const thread float* products, float2 sums) {
  return held.scales.x * products[0] + (held.scales.y * products[1] + (held.scales.z * sums.x + held.scales.w * sums.y));
}
// ---- kernel
[[kernel]] void o_02fc3e41(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device bfloat16_t* residual [[buffer(2)]],
  device bfloat16_t* out [[buffer(3)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint share = simdgroup_index_in_threadgroup;
  const uint group = lane / 4, own = lane % 4;
  const device bfloat16_t* input = x;
  // A simdgroup's x: of each unit and digit four times eight words, those of the lanes t, pairs for four products. Then its sums.
  MLXR_THREADGROUP(uint4, numbers, 128);
  MLXR_THREADGROUP(uint4, near, 576);
  MLXR_THREADGROUP(float4, totals, 4);
  // The output of a thread, and its residual, which is asked for with x.
  const uint at = min(thread_index_in_threadgroup / 1u, 63u);
  float of_residual;
  uint of_all, end;
  {
    of_all = threadgroup_position_in_grid.x * 64u;
    end = 512u;
#pragma unroll 4
    for (uint i = thread_index_in_threadgroup; i < 576u; i += 64u) {
      MLXR_COPY_AHEAD(near + 0u + i, (const device uint4*)Row_q4_k{weight + (ulong)of_all * 144u}.blocks + i);
    }

    MLXR_END_COPIES();
    MLXR_AWAIT_INPUTS()
    float4 of_x[1][1];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      load_bf16_4(input + (share + step * 2u) * 128u + lane * 4u, of_x[step]);
    }
    of_residual = (float)residual[min(of_all + at, end - 1)];
    float back[1];
    threadgroup uint* mine = (threadgroup uint*)numbers + share * 256u;
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      float4 v = of_x[step][0];
      const uint4 bits = as_type<uint4>(v) & 0x7fffffffu;
      const uint most = simd_max(max(max(bits.x, bits.y), max(bits.z, bits.w))) >> 23;
      // The largest number of a unit is scaled to between 2^29 and 2^30.
      const uint exponent = max(most, 30u);
      back[step] = most == 255u ? NAN : as_type<float>((exponent - 29u) << 23);
      v *= as_type<float>((283u - min(exponent, 254u)) << 23);
      float of_lanes = sum4(v);
      of_lanes += simd_shuffle_xor(of_lanes, 1);
      of_lanes += simd_shuffle_xor(of_lanes, 2);
      of_lanes += simd_shuffle_xor(of_lanes, 4);
      if (lane % 8u == 0) {
        ((threadgroup float*)(totals + (share * 1u + step) * 2u))[lane / 8u] = of_lanes;
      }
      uint digits[4];
      digits_of(v, digits);
      threadgroup uint* to = mine + step * 128u + (lane / 16u * 2u + lane / 4u % 2u) * 8u + lane / 8u % 2u * 4u + lane % 4u;
#pragma unroll
      for (uint d = 0; d < 4; d++) {
        to[d * 32u] = digits[d];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Column g of B is digit g % 4 of x where lanes 2 (g / 4) and the next one hold the codes.
    const uint keep = group / 4 == own / 2 ? 0xffffffffu : 0u;
    const int4 none = int4(0x4b400000);
    // Rows come while x is made ready, and are decoded where they are multiplied, in a loop: instructions that run once come
    // from far.
    MLXR_AWAIT_COPIES(0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const threadgroup uint8_t* row = (const threadgroup uint8_t*)near + group * 144u;
    const float times = own % 2 == 0 ? 65536.0f : 1.0f;
    threadgroup float* shares = (threadgroup float*)mine + lane;
    const uint step = 0;
    const uint unit = (share + step * 2u);
      const threadgroup uint4* from = (const threadgroup uint4*)(mine + step * 128u + (group % 4u * 4u + own) * 8u);
      const uint4 low = from[0] & keep, high = from[1] & keep;
      const uint2 b[4] = {low.xy, low.zw, high.xy, high.zw};
      // Sums of x: only even lanes, which have the higher digits, take them.
      const float4 of_runs = *(totals + (share * 1u + step) * 2u) * (own % 2 == 0 ? 1.52587891e-05f : 0.0f);
      const float2 of_x_sums = own < 2 ? of_runs.xy : of_runs.zw;

    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll 1
    for (uint p = 0; p < 4u; p++) {
      const Held_q4_k first = held_q4_k(Near_q4_k{row}, unit, own);
      const Held_q4_k second = held_q4_k(Near_q4_k{row + 1152u}, unit, own);
      float sum_of_first = 0.0f, sum_of_second = 0.0f;
        float of_first[2], of_second[2];
#pragma unroll
        for (uint run = 0; run < 2; run++) {
          int4 c = none;
#pragma unroll
          for (uint i = 0; i < 2; i++) {
            const uint at_b = run * 2 + i;
            const uint2 a = codes_of_q4_k(first, at_b), more = codes_of_q4_k(second, at_b);
            c = mma_u8(uint4(a.x, more.x, a.y, more.y), b[at_b], c, lane);
          }
          const float2 sum = sum_of_digits(c);
          of_first[run] = sum.x;
          of_second[run] = sum.y;
        }
        sum_of_first += unit_q4_k(first, of_first, of_x_sums) * back[step];
        sum_of_second += unit_q4_k(second, of_second, of_x_sums) * back[step];
      shares[0] = sum_of_first * times;
      shares[32] = sum_of_second * times;
      shares += 64;
      row += 2304u;
    }

  }
  const uint o = min(of_all + at, end - 1);
  const ulong place = o;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Neighbouring threads share the sums of an output.
  float y = 0.0f;
#pragma unroll
  for (uint s = thread_index_in_threadgroup % 1u; s < 2u; s += 1u) {
    const threadgroup float* sums_of = (const threadgroup float*)numbers + s * 256u + at / 16u * 64u + at % 16u * 4u;
    y += sum4(*(const threadgroup float4*)sums_of);
  }
  if (thread_index_in_threadgroup % 1u == 0 && thread_index_in_threadgroup / 1u == at && o == of_all + at) {
    y += of_residual;
    out[place] = (bfloat16_t)y;
  }
}
