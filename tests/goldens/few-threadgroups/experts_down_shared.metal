// experts_down_shared_4675fb0d
// small spec of a test
//
// out = residual + sum of weights * (x @ weight[expert].T), over the 3 experts that a token's router chose.
// To the sum is added sigmoid(shared_gate) * (shared_x @ shared.T), of the shared expert.
// A simdgroup makes 2 outputs of a token, one expert after another, and sums them in registers.
// 2 simdgroups share the columns of their outputs, and add up their sums in threadgroup memory.
// Grid: (8, tokens) threadgroups of 4 simdgroups.
//   x          [tokens, 3 * 256] bf16
//   weight     [1474560] u8
//     rows 0 to 10239: [10240, 256] q4_k at byte 0
//   experts    [tokens, 3] i32
//   weights    [tokens, 3] f32
//   shared_x   [tokens, 512] bf16
//   shared_gate [tokens, 1] f32
//   residual   [tokens, 256] bf16
//   out        [tokens, 256] bf16
//   shared     [73728] u8
//     rows 0 to 255: [256, 512] q4_k at byte 0
#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;

// ---- header
#ifndef MLXR_THREADGROUP
#define MLXR_THREADGROUP(T, name, count) threadgroup T name[count]
#endif
inline float4 widen_bf16(uint2 u) {
  return as_type<float4>(uint4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
inline void unpack_bf16(uint4 u, thread float4* v) {
  v[0] = widen_bf16(u.xy);
  v[1] = widen_bf16(u.zw);
}

inline void load_bf16_8(const device bfloat16_t* p, thread float4* v) {
  unpack_bf16(*(const device uint4*)p, v);
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


// ---- kernel
[[kernel]] void experts_down_shared_4675fb0d(
  const device bfloat16_t* x [[buffer(0)]],
  const device uint8_t* weight [[buffer(1)]],
  const device int32_t* experts [[buffer(2)]],
  const device float* weights [[buffer(3)]],
  const device bfloat16_t* shared_x [[buffer(4)]],
  const device uint8_t* shared [[buffer(5)]],
  const device float* shared_gate [[buffer(6)]],
  const device bfloat16_t* residual [[buffer(7)]],
  device bfloat16_t* out [[buffer(8)]],
  uint simdgroup_index_in_threadgroup [[simdgroup_index_in_threadgroup]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint thread_index_in_threadgroup [[thread_index_in_threadgroup]],
  uint3 threadgroup_position_in_grid [[threadgroup_position_in_grid]]) {
  const uint lane = thread_index_in_simdgroup;
  const uint token = threadgroup_position_in_grid.y;
  const uint share = simdgroup_index_in_threadgroup % 2u;
  MLXR_THREADGROUP(float, shares, 64);

  MLXR_THREADGROUP(float, shares_of_shared, 64);

  const uint chosen = token * 3u;
  const uint of_all = threadgroup_position_in_grid.x * 32u;
  const uint end = 256u;
  const uint first = of_all + simdgroup_index_in_threadgroup / 2u * 2u;
  {
    uint piece_of[1];
    uint slot_of[1], first_row[1];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint own = lane + 32u * share + step * 64u;
      piece_of[step] = min(own, 47u);
      slot_of[step] = piece_of[step] / 16u;
      piece_of[step] %= 16u;
      first_row[step] = (uint)experts[chosen + slot_of[step]] * 256u;
    }
    Raw_q4_k raw[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        const uint row = first_row[step] + min(first + r, end - 1);
        raw[step][r] = raw_q4_k(Row_q4_k{weight + (ulong)row * 144u}, piece_of[step]);
      }
    }
    float4 of_x[1][2][2];
    float total[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint column = piece_of[step] / 4u * 64u + piece_of[step] % 4u * 8u;
      const device bfloat16_t* row_of_x = x + (ulong)chosen * 256u + slot_of[step] * 256u;
      const bool has = lane + 32u * share + step * 64u < 48u;
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 v[2];
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          v[j] = float4(0.0f);
        }
        if (has) {
        load_bf16_8(row_of_x + column + run * 32u, v);

        }
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          of_x[step][run][j] = v[j] * weights[chosen + slot_of[step]];
        }
        total[step][run] = sum4(of_x[step][run][0]) + sum4(of_x[step][run][1]);
      }
    }
#pragma unroll 1
    for (uint pass = 0; pass < 8u; pass++) {
      float sums[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        sums[r] = 0.0f;
#pragma unroll
        for (uint step = 0; step < 1u; step++) {
#pragma unroll
          for (uint run = 0; run < 2u; run++) {
            float4 c[2];
            codes_q4_k(raw[step][r], run, c);
            float4 products = c[0] * of_x[step][run][0];
#pragma unroll
            for (uint j = 1; j < 2u; j++) {
              products += c[j] * of_x[step][run][j];
            }
            const float2 factor = scale_q4_k(raw[step][r], run);
            sums[r] += sum4(products) * factor.x + total[step][run] * factor.y;
          }
        }
      }
      if (pass + 1 < 8u) {
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
  #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const uint row = first_row[step] + min(first + (pass + 1) * 4u + r, end - 1);
          raw[step][r] = raw_q4_k(Row_q4_k{weight + (ulong)row * 144u}, piece_of[step]);
        }
      }
      }
      // Half of the lanes keep half of the rows, and so on: in the end, lane l has row l / 16.
#pragma unroll
      for (uint r = 0; r < 1u; r++) {
        const float given = (lane & 16u) ? sums[r] : sums[r + 1];
        const float kept = (lane & 16u) ? sums[r + 1] : sums[r];
        sums[r] = kept + simd_shuffle_xor(given, 16);
      }
      sums[0] += simd_shuffle_xor(sums[0], 8);
      sums[0] += simd_shuffle_xor(sums[0], 4);
      sums[0] += simd_shuffle_xor(sums[0], 2);
      sums[0] += simd_shuffle_xor(sums[0], 1);
      if (lane % 16u == 0) {
        shares[(pass * 4u + simdgroup_index_in_threadgroup) * 2u + lane / 16u] = sums[0];
      }
    }
  }
  {
    uint piece_of[1];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint own = lane + 32u * share + step * 64u;
      piece_of[step] = min(own, 31u);
    }
    Raw_q4_k raw[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        const uint row = min(first + r, end - 1);
        raw[step][r] = raw_q4_k(Row_q4_k{shared + (ulong)row * 288u}, piece_of[step]);
      }
    }
    float4 of_x[1][2][2];
    float total[1][2];
#pragma unroll
    for (uint step = 0; step < 1u; step++) {
      const uint column = piece_of[step] / 4u * 64u + piece_of[step] % 4u * 8u;
      const bool has = lane + 32u * share + step * 64u < 32u;
#pragma unroll
      for (uint run = 0; run < 2u; run++) {
        float4 v[2];
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          v[j] = float4(0.0f);
        }
        if (has) {
        load_bf16_8(shared_x + (ulong)token * 512u + column + run * 32u, v);

        }
#pragma unroll
        for (uint j = 0; j < 2u; j++) {
          of_x[step][run][j] = v[j];
        }
        total[step][run] = sum4(of_x[step][run][0]) + sum4(of_x[step][run][1]);
      }
    }
#pragma unroll 1
    for (uint pass = 0; pass < 8u; pass++) {
      float sums[2];
#pragma unroll
      for (uint r = 0; r < 2u; r++) {
        sums[r] = 0.0f;
#pragma unroll
        for (uint step = 0; step < 1u; step++) {
#pragma unroll
          for (uint run = 0; run < 2u; run++) {
            float4 c[2];
            codes_q4_k(raw[step][r], run, c);
            float4 products = c[0] * of_x[step][run][0];
#pragma unroll
            for (uint j = 1; j < 2u; j++) {
              products += c[j] * of_x[step][run][j];
            }
            const float2 factor = scale_q4_k(raw[step][r], run);
            sums[r] += sum4(products) * factor.x + total[step][run] * factor.y;
          }
        }
      }
      if (pass + 1 < 8u) {
  #pragma unroll
      for (uint step = 0; step < 1u; step++) {
  #pragma unroll
        for (uint r = 0; r < 2u; r++) {
          const uint row = min(first + (pass + 1) * 4u + r, end - 1);
          raw[step][r] = raw_q4_k(Row_q4_k{shared + (ulong)row * 288u}, piece_of[step]);
        }
      }
      }
      // Half of the lanes keep half of the rows, and so on: in the end, lane l has row l / 16.
#pragma unroll
      for (uint r = 0; r < 1u; r++) {
        const float given = (lane & 16u) ? sums[r] : sums[r + 1];
        const float kept = (lane & 16u) ? sums[r + 1] : sums[r];
        sums[r] = kept + simd_shuffle_xor(given, 16);
      }
      sums[0] += simd_shuffle_xor(sums[0], 8);
      sums[0] += simd_shuffle_xor(sums[0], 4);
      sums[0] += simd_shuffle_xor(sums[0], 2);
      sums[0] += simd_shuffle_xor(sums[0], 1);
      if (lane % 16u == 0) {
        shares_of_shared[(pass * 4u + simdgroup_index_in_threadgroup) * 2u + lane / 16u] = sums[0];
      }
    }
  }
  const float factor = 1.0f / (1.0f + metal::precise::exp(-(float)shared_gate[token]));
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (uint at = thread_index_in_threadgroup; at < 32u && of_all + at < end; at += 128u) {
    const uint o = of_all + at;
    const uint in_tile = at % 4u;
    const uint of_rows = ((at / 4u) * 4u + in_tile / 2u * 2u) * 2u + in_tile % 2u;
    float y = 0.0f;
#pragma unroll
    for (uint s = 0; s < 2u; s++) {
      const uint at_sum = of_rows + s * 2u;
      y += shares[at_sum] + factor * shares_of_shared[at_sum];
    }
    const ulong place = (ulong)token * 256u + o;
    y += (float)residual[place];
    out[place] = (bfloat16_t)y;
  }
}
